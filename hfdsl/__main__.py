"""``python -m hfdsl`` is the ``hfdsl`` command."""

import sys

from hfdsl.tools.cli import main

sys.exit(main())
