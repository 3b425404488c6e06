"""``python -m tllib_ext COMMAND``: the same as ``tllib-ext COMMAND``."""

import sys

from tllib_ext.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
