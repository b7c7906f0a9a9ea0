"""The Oncebox SDK: ``from oncebox import Client, AsyncClient``.

The code lives in ``service.client``; this module gives it a name of its own, because ``service`` is a
name that a user's own code may have.
"""

from service.client import *
from service.client import __all__ as __all__
