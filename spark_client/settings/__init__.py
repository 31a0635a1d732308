"""What a deployment sets once: the session's ``spark.flight.shuffle.*``, their texts, and the clients made of them."""

from .open_clients import open_client
from .session_conf import EMBEDDED, client_arguments
from .texts import certificates, flag, integer, one_of, seconds, size_bytes, some_text
