"""``python -m dist_checks`` is ``dist-checks``."""

from dist_checks.cli import main

main()
