"""``python -m tllib_ext.tllib SCRIPT …``: the same as ``tllib-ext tllib SCRIPT …``."""

import sys

from tllib_ext.cli.tllib import main

if __name__ == "__main__":
    sys.exit(main())
