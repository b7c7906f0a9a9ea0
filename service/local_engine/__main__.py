"""`python -m service.local_engine`."""

import sys

from . import main

sys.exit(main())
