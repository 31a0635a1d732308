"""Makes executors able to run our tasks: checks the interpreter, forks workers with their libraries imported, ships the
package, wraps functions, spares workers, and says whose task it is.
"""

from .executor_servers import ExecutorServers, address_of_driver, reason_of, start_of
from .interpreter import check_interpreter, in_forked_workers, use_own_interpreter
from .shipping import Portable, portable, settle, ship, write_zip
from .spark_owners import owner_of_session, owner_of_task
