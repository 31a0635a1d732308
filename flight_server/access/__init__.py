"""Tokens, principals, the table of calls, checks of browsers' requests, for both lanes; servers that ``sources`` may
pull from.
"""

from .authenticator import AUTHORIZATION, SECOND_AUTHORIZATION, Authenticator, token_in
from .browsers import Doorkeeper
from .flight_locations import ANY_HOST, FlightLocation
from .operations import OPERATIONS, Operation, Resource
from .principals import ANONYMOUS, ANYONE, Permission, Principal
from .quotas import Usages, acting, acting_for, open_stream
from .token_file import TokenFileRefused
