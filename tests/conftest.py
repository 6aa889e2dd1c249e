"""No test asks the cloud it may be running in; those about spot notices name a simulation."""

import os

os.environ.setdefault("STOKER_METADATA", "off")
