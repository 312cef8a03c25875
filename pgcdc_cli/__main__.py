"""`python -m pgcdc_cli` is `pgcdc`."""

from pgcdc_cli.cli.app import main

main()
