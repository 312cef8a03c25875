"""`python -m pgcdc_cli` is `pgcdc`."""

from pgcdc_cli.cli.main import main

main()
