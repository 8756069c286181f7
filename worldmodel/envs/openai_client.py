"""Requests to an OpenAI-compatible endpoint, with retries, time-outs and a count of what they cost. No library needed.

A request that fails for good is an outcome like any other: a `Reply` without text whose status says why.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from worldmodel.envs.server.guard import is_loopback

OK = "ok"
AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses that another attempt may change."""
LONGEST_WAIT = 60.0
"""Seconds between two attempts at most, whatever the endpoint asks for."""
LARGEST = 2**24
"""Bytes of a reply that are read at most."""


class Reply(NamedTuple):
    """What came of a request.

    Attributes:
      text: None where it failed.
      status: "ok"; "http 429" and the like; "timeout"; "connection"; "garbage", no JSON or not of the protocol; "no
        text", the endpoint answered with something else; "budget", not sent: the client's own limit.
      error: one line; None where it is ok.
      attempts: calls over the network.
      seconds: in all, waits between attempts included.
      prompt_tokens: None where not told.
      completion_tokens: None where not told.
      finish: why the endpoint stopped.
    """

    text: str | None
    status: str
    error: str | None
    attempts: int
    seconds: float
    prompt_tokens: int | None
    completion_tokens: int | None
    finish: str | None

    @property
    def info(self) -> dict[str, Any]:
        """All but the text, plain JSON."""
        told = self._asdict()
        del told["text"]
        return told


@dataclasses.dataclass
class Usage:
    """What a client has used so far.

    Attributes:
      requests, attempts, failures: counts; an attempt is one call over the network.
      prompt_tokens, completion_tokens: of the replies that told them.
      untold: replies that did not.
      statuses: how often each status came.
    """

    requests: int = 0
    attempts: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    untold: int = 0
    statuses: dict[str, int] = dataclasses.field(default_factory=dict)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Following one would send the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _Failure(Exception):
    """An attempt that failed: its status, one line, whether another may succeed, and seconds that it asks to wait."""

    def __init__(self, status: str, error: str, *, again: bool = True, wait: float = 0.0):
        super().__init__(error)
        self.status, self.again, self.wait = status, again, wait


class ChatClient:
    """Chat completions of one model of one endpoint; may be shared by threads.

    Args:
      base_url: as other clients take it, such as `http://127.0.0.1:8080/v1`.
      model: name of the model there.
      api_key: sent as a bearer token; to this endpoint alone.
      timeout: seconds of one attempt, from the connection to the last byte.
      retries: further attempts after a failure that may pass (time-outs, 429, 5xx, garbage).
      backoff: seconds before the second attempt, doubled before each further one, with up to half of it off by chance;
        what the endpoint asks for (`Retry-After`) counts where it is more.
      price: money per million tokens of prompt and of completion; None: not known.
      most_attempts: calls over the network in all; further requests fail with the status "budget".
      **sampling: further fields of every request, such as `temperature` and `max_tokens`.

    Raises:
      ValueError: an argument is outside what is allowed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 4,
        backoff: float = 1.0,
        price: tuple[float, float] | None = None,
        most_attempts: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
        **sampling: Any,
    ):
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url is {base_url!r}; one such as 'http://127.0.0.1:8080/v1' is needed")
        if retries < 0 or not timeout > 0 or backoff < 0:
            raise ValueError(f"retries is {retries}, timeout {timeout} and backoff {backoff}; negative ones are no use")
        self._url, self.model = f"{base_url.rstrip('/')}/chat/completions", model
        self._key, self._timeout, self._retries, self._backoff = api_key, timeout, retries, backoff
        self._price, self._most, self._sleep, self._sampling = price, most_attempts, sleep, sampling
        self.usage = Usage()
        self._lock, self._rng = threading.Lock(), random.Random(0)
        proxies = [urllib.request.ProxyHandler({})] if is_loopback(parts.hostname) else []
        self._opener = urllib.request.build_opener(_NoRedirects, *proxies)

    def chat(self, messages: Sequence[Mapping[str, str]], **fields: Any) -> Reply:
        """The model's next message after these; `fields` are added to the request.

        Whatever the endpoint does, it is told in the reply and not raised.
        """
        body = {"model": self.model, "messages": list(messages), **self._sampling, **fields}
        data, started = json.dumps(body).encode(), time.monotonic()
        attempts, reply = 0, None
        failure = _Failure("budget", f"all {self._most} attempts are used up", again=False)
        while reply is None and self._may_try():
            attempts += 1
            try:
                reply = _read_reply(self._once(data))
                break
            except _Failure as error:
                failure = error
            if not failure.again or attempts > self._retries:
                break
            self._sleep(self._wait(attempts, failure.wait))
        seconds = time.monotonic() - started
        if reply is None:
            reply = Reply(None, failure.status, str(failure), 0, 0.0, None, None, None)
        reply = reply._replace(attempts=attempts, seconds=seconds)
        self._count(reply)
        return reply

    def cost(self) -> dict[str, Any]:
        """`{"cost": ..}` of everything so far; None beside `why` where it cannot be known."""
        if self._price is None:
            return {"cost": None, "why": "no price was given"}
        if self.usage.untold:
            return {"cost": None, "why": f"{self.usage.untold} replies told no token counts"}
        prompt, completion = self._price
        return {"cost": (prompt * self.usage.prompt_tokens + completion * self.usage.completion_tokens) / 1e6}

    def _may_try(self) -> bool:
        with self._lock:
            if self._most is not None and self.usage.attempts >= self._most:
                return False
            self.usage.attempts += 1
            return True

    def _wait(self, attempts: int, asked: float) -> float:
        with self._lock:
            chance = self._rng.uniform(0.5, 1.0)
        return min(max(self._backoff * 2 ** (attempts - 1) * chance, asked), LONGEST_WAIT)

    def _once(self, data: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        end = time.monotonic() + self._timeout
        request = urllib.request.Request(self._url, data, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                return _read(response, end)
        except urllib.error.HTTPError as error:
            told = " ".join(error.read(2_000).decode("utf-8", "replace").split())[:300]
            wait = _seconds(error.headers.get("Retry-After"))
            raise _Failure(
                f"http {error.code}", told or str(error.reason), again=error.code in AGAIN, wait=wait
            ) from None
        except TimeoutError:
            raise _Failure("timeout", f"no whole answer within {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise _Failure("timeout", f"no connection within {self._timeout:g} s") from None
            raise _Failure("connection", f"{type(reason).__name__}: {reason}") from None

    def _count(self, reply: Reply) -> None:
        with self._lock:
            usage = self.usage
            usage.requests += 1
            usage.statuses[reply.status] = usage.statuses.get(reply.status, 0) + 1
            if reply.status != OK:
                usage.failures += 1
            if reply.prompt_tokens is not None and reply.completion_tokens is not None:
                usage.prompt_tokens += reply.prompt_tokens
                usage.completion_tokens += reply.completion_tokens
            elif reply.status == OK:
                usage.untold += 1


def _read(response: Any, end: float) -> bytes:
    """The whole body, by the deadline: a time-out of the socket alone begins anew with every byte."""
    parts, size = [], 0
    while part := response.read1(2**16):
        size += len(part)
        if size > LARGEST:
            raise _Failure("garbage", f"the answer has more than {LARGEST} bytes", again=False)
        if time.monotonic() > end:
            raise TimeoutError
        parts.append(part)
    return b"".join(parts)


def _read_reply(body: bytes) -> Reply:
    """A reply from the JSON of a chat completion; `_Failure` where it is none."""
    try:
        told = json.loads(body)
        choice = told["choices"][0]
        content, usage = choice["message"].get("content"), told.get("usage") or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
        start = body[:80].decode("utf-8", "replace")
        raise _Failure("garbage", f"no chat completion ({type(error).__name__}): {start!r}") from None
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    finish = choice.get("finish_reason")
    finish = finish if isinstance(finish, str) else None
    prompt, completion = (count if isinstance(count, int) and not isinstance(count, bool) else None for count in counts)
    if not isinstance(content, str):
        return Reply(
            None, "no text", f"the message holds no text (finish_reason {finish})", 0, 0.0, prompt, completion, finish
        )
    return Reply(content, OK, None, 0, 0.0, prompt, completion, finish)


def _seconds(header: str | None) -> float:
    """Of `Retry-After`; 0 where it is none, or a date."""
    try:
        return max(float(header or 0.0), 0.0)
    except ValueError:
        return 0.0
