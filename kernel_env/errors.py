"""What the client raises. Standard library only."""

from __future__ import annotations


class KernelEnvError(Exception):
    """Base of all of them: `code` is stable and for programs, `message` is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[KernelEnvError], tuple[str, ...]]:
        """Trainers send exceptions between processes."""
        return type(self), (self.code, self.message)


class CapacityReached(KernelEnvError):
    """Every session slot of the server is taken. This client is finished: make a new one and try again later."""


class InvalidRequestError(KernelEnvError):
    """The server refused this request and says what is valid. The session and its episode are as they were."""


class SessionLost(KernelEnvError):
    """The session is over: a timeout, a cancelled call or a closed socket. Every later call raises it again.

    The episode cannot be resumed; an answer that arrives late is never returned for another call. Make a new client.
    """


class ServerError(KernelEnvError):
    """The server failed to handle the request; its log says more."""


class InfrastructureFault(ServerError):
    """A part of the server failed and nothing was learned about the submission; `infra_code` says which part.

    Raised by `step` where the server has KERNEL_ENV_INFRA_FAILURE=error_frame. The session and its episode are as they
    were: no turn was used, and the submission may be sent again.
    """

    def __init__(self, code: str, message: str, infra_code: str) -> None:
        super().__init__(code, message)
        self.infra_code = infra_code

    def __reduce__(self) -> tuple[type[KernelEnvError], tuple[str, ...]]:
        return type(self), (self.code, self.message, self.infra_code)
