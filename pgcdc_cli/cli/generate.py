"""Write `man/` and `completions/` from the commands: `python -m pgcdc_cli.cli.generate [--check] [DIR]`.

DIR is the project's directory, by default the working directory. `--check` writes nothing, names the files
that differ, and then exits with status 1.
"""

import sys
from pathlib import Path

from pgcdc_cli.cli.app import root_command
from pgcdc_cli.cli.completion import scripts
from pgcdc_cli.cli.manpage import pages


def generated() -> dict[str, str]:
    """Path in the project -> text."""
    root = root_command()
    return {f"man/{name}": text for name, text in pages(root).items()} | {
        f"completions/{name}": text for name, text in scripts(root).items()
    }


def stale(project: Path) -> list[str]:
    """Files that are missing, outdated, or no longer generated."""
    files = generated()
    present = {str(p.relative_to(project)) for d in ("man", "completions") for p in (project / d).glob("*")}
    outdated = [name for name, text in files.items() if name in present and _read(project / name) != text]
    return sorted(outdated + list(present ^ files.keys()))


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def write(project: Path) -> None:
    """Bring the files up to date."""
    files = generated()
    for name in stale(project):
        path = project / name
        if name in files:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[name], "utf-8")
        else:
            path.unlink()


def main(arguments: list[str]) -> int:
    """Run the generator; gives the exit status."""
    check = "--check" in arguments
    directories = [argument for argument in arguments if argument != "--check"]
    project = Path(*directories)
    names = stale(project)
    sys.stdout.write("".join(f"{name}\n" for name in names))
    if not check:
        write(project)
    return 1 if check and names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
