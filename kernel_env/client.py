"""The client of a kernel_env server, async or through `.sync()`. Touches the network and three environment variables.

It adds to OpenEnv's client: the server's token and the proxy's credentials on the handshake, errors with codes, a
timeout longer than the server's longest step, and the promise that an answer belongs to its question. OpenEnv's own
client returns the previous step's observation after a timeout. Written for openenv-core 0.3.0; where openenv 0.10
differs, it looks.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import os
from typing import Any, NoReturn
from urllib.parse import urlsplit

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from websockets.asyncio.client import connect as ws_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from kernel_env.errors import (
    CapacityReached,
    InfrastructureFault,
    InvalidRequestError,
    KernelEnvError,
    ServerError,
    SessionLost,
)
from kernel_env.models import MAX_MESSAGE_BYTES, KernelAction, KernelObservation, KernelState

DEFAULT_MESSAGE_TIMEOUT_S = 300.0
STEP_DEADLINE_MARGIN_S = 60.0
TOKEN_VARIABLE = "KERNEL_ENV_TOKEN"
_SECRET_HEADERS = frozenset({"authorization", "cookie", "modal-key", "modal-secret", "proxy-authorization"})
_ANSWERS = {"reset": "observation", "step": "observation", "state": "state"}
_MAX_DETAIL_CHARS = 500
_ENDS_SESSION = frozenset({"SESSION_ERROR", "FACTORY_ERROR", "CAPACITY_REACHED"})


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _proxy_headers() -> dict[str, str]:
    """Modal's proxy authentication, when MODAL_PROXY_KEY and MODAL_PROXY_SECRET are set.

    Raises:
        ValueError: only one of the two is set.
    """
    key, secret = os.environ.get("MODAL_PROXY_KEY"), os.environ.get("MODAL_PROXY_SECRET")
    if bool(key) != bool(secret):
        raise ValueError("Set both MODAL_PROXY_KEY and MODAL_PROXY_SECRET, or neither.")
    return {"Modal-Key": key, "Modal-Secret": secret} if key and secret else {}


def _token_header(token: str | None, headers: dict[str, str]) -> dict[str, str]:
    """The server's token as a header; none where the caller has an Authorization header of his own.

    Raises:
        ValueError: the token has characters that a header cannot carry.
    """
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
    if not token or any(name.lower() == "authorization" for name in headers):
        return {}
    if not all("!" <= character <= "~" for character in token):
        raise ValueError(f"The token ({TOKEN_VARIABLE}) must be visible ASCII characters without spaces.")
    return {"Authorization": f"Bearer {token}"}


def _hide_secrets(record: logging.LogRecord) -> bool:
    """False for the line in which websockets, at level DEBUG, would log a header that is a secret."""
    name = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return not (isinstance(name, str) and name.lower() in _SECRET_HEADERS)


_wire_logger = logging.getLogger("kernel_env.websocket")
_wire_logger.addFilter(_hide_secrets)


def _error(data: dict[str, Any]) -> KernelEnvError:
    """The typed error for the data of a server's error frame, whose code and message are text."""
    code, message = data["code"], data["message"]
    if code == "CAPACITY_REACHED":
        return CapacityReached("capacity_reached", message)
    if code == "VALIDATION_ERROR":
        errors = data.get("errors")
        details = [_detail(error) for error in errors[:5]] if isinstance(errors, list) else []
        return InvalidRequestError("validation_error", "; ".join([message, *details]))
    if code == "EXECUTION_ERROR" and message.startswith("["):
        ours, _, rest = message[1:].partition("] ")
        if ours == "infrastructure_fault":
            infra_code, _, explanation = rest.partition(": ")
            return InfrastructureFault(ours, explanation, infra_code)
        return ServerError(ours, rest) if ours == "internal_error" else InvalidRequestError(ours, rest)
    return ServerError(code.lower(), message)


def _detail(error: Any) -> str:
    """One of a validation error's details; whatever is not of pydantic's form is shown as it is."""
    if not isinstance(error, dict) or not isinstance(error.get("loc"), list):
        return str(error)[:_MAX_DETAIL_CHARS]
    return f"{'.'.join(map(str, error['loc']))}: {error.get('msg', '')}"[:_MAX_DETAIL_CHARS]


def _oddity(kind: str, response: Any) -> str | None:
    """What is wrong with the form of an answer to a message of this kind; None for nothing."""
    if not isinstance(response, dict):
        return "not a JSON object"
    data = response.get("data")
    if not isinstance(data, dict):
        return "its data is not a JSON object"
    if response.get("type") == "error":
        text = isinstance(data.get("code"), str) and isinstance(data.get("message"), str)
        return None if text else "an error without code and message"
    if response.get("type") != _ANSWERS[kind]:
        return f"not of type {_ANSWERS[kind]!r}"
    if kind == "state":
        return None
    if not isinstance(data.get("observation"), dict):
        return "no observation in it"
    if not isinstance(data.get("done"), bool):
        return "done is not true or false"
    return None if _is_reward(data.get("reward", math.nan)) else "the reward is neither null nor a finite number"


def _is_reward(value: Any) -> bool:
    if value is None:
        return True
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


class KernelEnv(EnvClient[KernelAction, KernelObservation, KernelState]):
    """One session with a server: `reset`, `step`, `state`, `close`.

    Args:
        base_url: the server's address, http(s):// or ws(s)://.
        connect_timeout_s: for the handshake and the server's first answer.
        message_timeout_s: for each answer. `reset(step_deadline_s=...)` raises it to that deadline and a margin.
        max_message_size_mb: largest answer accepted.
        headers: more handshake headers; they win over the Modal ones and the token.
        provider, mode: as in OpenEnv's client.
        token: what the server asks for; None for that of KERNEL_ENV_TOKEN, where it is set.

    Raises:
        ConnectionError: from the first call or `connect`: no server answers at this address.
        InvalidRequestError: from the first call or `connect`, with code "unauthorized": the server wants another token.
        CapacityReached, InvalidRequestError, SessionLost, ServerError: from every call; see `kernel_env.errors`. An
            answer that is not what the call asks for is a ServerError with code "bad_answer" and ends the session.
        InfrastructureFault: from `step`, where the server is set to answer its own faults so.

    Use either `async with KernelEnv(...) as env` and await every call, or `with KernelEnv(...).sync() as env`.
    """

    def __init__(
        self,
        base_url: str,
        connect_timeout_s: float = 30.0,
        message_timeout_s: float = DEFAULT_MESSAGE_TIMEOUT_S,
        max_message_size_mb: float = 100.0,
        headers: dict[str, str] | None = None,
        provider: Any = None,
        mode: str | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(
            base_url=base_url,
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_size_mb=max_message_size_mb,
            provider=provider,
            mode=mode,
        )
        headers = headers or {}
        self._headers = {**_proxy_headers(), **_token_header(token, headers), **headers}
        self._default_timeout_s = message_timeout_s
        self._turn = asyncio.Lock()
        self._lost: SessionLost | CapacityReached | ServerError | None = None

    # openenv 0.10 calls `_connect_async` where 0.3.0 calls `connect`.
    if not hasattr(EnvClient, "_connect_async"):

        async def connect(self) -> KernelEnv:
            """Open the session now, instead of at the first call. See the class for what it raises."""
            return await self._connect_async()

    async def _connect_async(self) -> KernelEnv:
        if self._lost is not None:
            raise self._lost
        if self._ws is not None:
            return self
        url = str(self._ws_url)
        try:
            self._ws = await ws_connect(
                url,
                open_timeout=self._connect_timeout,
                max_size=self._max_message_size,
                # The message timeout ends a call to a dead server; a busy tunnel that drops pings must not.
                ping_timeout=self._default_timeout_s,
                additional_headers=self._headers,
                proxy=None if _is_loopback(url) else True,
                logger=_wire_logger,
            )
        except InvalidStatus as exc:
            if exc.response.status_code != 401:
                raise ConnectionError(f"Failed to connect to {url}: {exc}") from exc
            message = f"{url} wants another token: set {TOKEN_VARIABLE}, or pass token= to KernelEnv."
            raise InvalidRequestError("unauthorized", message) from exc
        except Exception as exc:
            raise ConnectionError(f"Failed to connect to {url}: {exc}") from exc
        self._ws_loop = asyncio.get_running_loop()
        # The server refuses a session with a frame after the handshake; ask something, so that it shows here.
        response = await self._exchange("state", json.dumps({"type": "state"}), self._connect_timeout)
        if response.get("type") == "error":
            self._raise_for(response)
        return self

    def _lose(self, error: SessionLost | CapacityReached | ServerError) -> None:
        """End the session at once and for good. The server frees its slot when it sees the socket go."""
        self._lost = error
        ws, self._ws = self._ws, None
        if ws is not None:
            ws.transport.abort()

    def _raise_for(self, response: dict[str, Any]) -> NoReturn:
        error = _error(response["data"])
        if response["data"]["code"] in _ENDS_SESSION and isinstance(error, CapacityReached | ServerError):
            self._lose(error)
        raise error

    def _refuse_answer(self, why: object, cause: Exception | None = None) -> NoReturn:
        """End the session over an answer that cannot be trusted: what comes after it cannot be either."""
        detail = str(why)[:_MAX_DETAIL_CHARS]
        self._lose(ServerError("bad_answer", f"The server's answer is not what OpenEnv specifies: {detail}"))
        raise self._lost_error() from cause

    async def _exchange(self, kind: str, text: str, timeout_s: float) -> dict[str, Any]:
        """Send one message and return its answer, of a form that fits; anything else ends the session."""
        ws = self._ws
        assert ws is not None
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await ws.send(text)
                except ConnectionClosed:
                    pass  # the server may have said why before it closed: read that first
                response = json.loads(await ws.recv())
            odd = _oddity(kind, response)
        except TimeoutError as exc:
            self._lose(SessionLost("timeout", f"No answer to {kind!r} within {timeout_s:g} s."))
            raise self._lost_error() from exc
        except (ConnectionClosed, OSError) as exc:
            self._lose(SessionLost("closed", f"The connection closed during {kind!r}: {exc}"))
            raise self._lost_error() from exc
        except (ValueError, RecursionError) as exc:
            self._refuse_answer(exc, exc)
        except BaseException:
            self._lose(SessionLost("cancelled", f"The call {kind!r} was interrupted before its answer."))
            raise
        if odd is not None:
            self._refuse_answer(odd)
        return response

    def _lost_error(self) -> KernelEnvError:
        assert self._lost is not None
        return self._lost

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            text = json.dumps(message)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidRequestError("invalid_argument", f"The arguments are not JSON: {exc}") from exc
        if len(text) > MAX_MESSAGE_BYTES:
            explanation = f"The message has {len(text)} bytes, and a server accepts at most {MAX_MESSAGE_BYTES}."
            raise InvalidRequestError("too_large", explanation)
        async with self._turn:
            await self._connect_async()
            response = await self._exchange(message["type"], text, self._message_timeout)
        if response["type"] == "error":
            self._raise_for(response)
        if message["type"] == "reset":
            deadline_s = message["data"].get("step_deadline_s")
            longest_s = float(deadline_s) + STEP_DEADLINE_MARGIN_S if deadline_s is not None else 0.0
            self._message_timeout = max(self._default_timeout_s, longest_s)
        return response

    def _step_payload(self, action: KernelAction) -> dict[str, Any]:
        # A lone surrogate, which a tokenizer can produce, is not JSON text; the server would drop the session.
        return {"code": action.code.encode("utf-8", "replace").decode("utf-8")}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[KernelObservation]:
        known = KernelObservation.model_fields
        # A newer server's extra fields must not break an older client.
        fields = {name: value for name, value in payload["observation"].items() if name in known}
        fields.update(reward=payload["reward"], done=payload["done"])
        try:
            observation = KernelObservation.model_validate_json(json.dumps(fields), strict=True)
        except (ValueError, RecursionError) as exc:
            self._refuse_answer(exc, exc)
        return StepResult(observation=observation, reward=observation.reward, done=observation.done)

    def _parse_state(self, payload: dict[str, Any]) -> KernelState:
        try:
            return KernelState.model_validate_json(json.dumps(payload), strict=True)
        except (ValueError, RecursionError) as exc:
            self._refuse_answer(exc, exc)
