"""Requests to S3 through the `obstore` package, whose connections and checks of signatures are compiled code.

It is asked with the options and the credentials that s3fs would find: `storage_options`, the environment,
configuration files, roles. What of them it has no name for raises CannotServe, and fsspec serves instead.

Requests run in threads of Python that wait in compiled code, so that Ctrl-C ends the wait, and that stay as long as the
process: one that has such threads is not forked by this package. A fork made by other code has none of the
threads that do the work, and would wait for ever: `require_here` says so before.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tdmap.stores.transport import CannotServe, Place, ShortRead, leads_out

SCHEMES = ("s3", "s3a")

CONNECTIONS = 16
"""Requests of a process that are under way at once, at most."""

PIECE_BYTES = 1 << 20
"""What is received is copied to its place in such pieces: small enough for memory that obstore uses again."""

MULTIPART_BYTES = 64 << 20
"""A larger object is written in parts;"""

PART_BYTES = 16 << 20
"""each of so many bytes."""

TIMEOUT, CONNECT_SECONDS, READ_SECONDS = "1h", 60, 60
"""Of one request, of its connection, and of a wait for more bytes. The latter two are those of botocore."""

RETRIES = 4
"""How often one request is made again by the library itself."""

CREDENTIALS_MINUTES = 10
"""Credentials that are renewed are asked for again after so long; botocore gives out none that end earlier."""

_ANYTHING = {
    "asynchronous", "cache_regions", "default_block_size", "default_cache_type", "default_fill_cache",
    "fixed_upload_size", "listings_expiry_time", "max_concurrency", "max_paths", "skip_instance_cache",
    "use_listings_cache",
}  # fmt: skip
"""Options of s3fs about what is never asked of it here, or about how it does what obstore does otherwise."""

_CONFIG = {"max_pool_connections", "request_checksum_calculation", "response_checksum_validation"}
"""The same, of botocore's configuration: payloads are signed, so that no other checksum is needed."""

_INVALID = re.compile(r'invalid path: Error parsing Path "(.*?)":', re.DOTALL)
"""What obstore says of a listing with a name that is no relative path."""

_lock = threading.Lock()
_process = 0
"""The process that has obstore's threads; in a fork of it, its parent's."""


def require_here() -> None:
    """Raise CannotServe in a fork of a process that has used obstore."""
    global _process
    with _lock:
        _process = _process or os.getpid()
    if _process != os.getpid():
        raise CannotServe("the threads of obstore are not in this process, which is a fork")


class ObstoreFiles:
    """S3 through obstore (see `Transport`).

    Args:
        scheme: the part of a URL before `://`.
        options: what s3fs's class is made with.

    Raises:
        CannotServe: obstore is not installed, or has no name for some of it.
    """

    def __init__(self, scheme: str, options: Mapping[str, Any]) -> None:
        if scheme not in SCHEMES:
            raise CannotServe(f"{scheme}:// is served by fsspec")
        self._how = translated(options)
        try:
            self._ob = importlib.import_module("obstore")
            self._stores = importlib.import_module("obstore.store")
        except ImportError as error:
            raise CannotServe("obstore is not installed") from error
        require_here()
        self._buckets: dict[str, Any] = {}
        self._threads = ThreadPoolExecutor(CONNECTIONS, "tdmap-obstore")

    def content(self, url: str) -> bytes:
        return bytes(self._one(url, lambda store, key: self._ob.get(store, key).bytes()))

    def fill(self, places: Sequence[Place]) -> Sequence[Exception | None]:
        def get(place: Place) -> Exception | None:
            asked, memory = place
            url, start, stop = asked
            at = 0
            try:
                store, key = self._at(url)
                for piece in self._ob.get(store, key, options={"range": (start, stop)}).stream(PIECE_BYTES):
                    nbytes = len(piece)
                    if at + nbytes <= len(memory):
                        memory[at : at + nbytes] = memoryview(piece).cast("B")
                    at += nbytes
            except Exception as error:
                return _told(error)
            return None if at == len(memory) else ShortRead(asked, at)

        return self._each(get, places)

    def names(self, url: str) -> list[str]:
        found = self._one(url, lambda store, key: self._ob.list_with_delimiter(store, key or None))
        paths = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def find(self, url: str) -> dict[str, tuple[int, str]]:
        prefix = self._at(url)[1]
        return {
            one["path"][len(prefix) :].lstrip("/"): (int(one["size"]), f"{one['e_tag']} {one['last_modified']}")
            for one in self._listed(url)
            if len(one["path"]) > len(prefix)  # not an object that stands for the folder itself
        }

    def put(self, objects: Mapping[str, bytes | bytearray]) -> None:
        self._put([(url, data, len(data)) for url, data in objects.items()])

    def send(self, files: Mapping[str, str]) -> None:
        self._put([(url, Path(file), os.path.getsize(file)) for url, file in files.items()])

    def remove(self, urls: Sequence[str]) -> None:
        keys = [self._at(url)[1] for url in urls]
        self._one(urls[0], lambda store, key: self._ob.delete(store, keys))

    def _put(self, objects: list[tuple[str, Any, int]]) -> None:
        def put(one: tuple[str, Any, int]) -> None:
            url, data, nbytes = one
            try:
                store, key = self._at(url)
                self._ob.put(store, key, data, use_multipart=nbytes > MULTIPART_BYTES, chunk_size=PART_BYTES)
            except Exception as error:
                raise _told(error) from error

        self._each(put, objects)

    def _listed(self, url: str) -> list[Any]:
        def look(store: Any, key: str) -> list[Any]:
            return [one for batch in self._ob.list(store, key or None) for one in batch]

        try:
            found: list[Any] = self._one(url, look)
        except OSError as error:
            invalid = _INVALID.search(str(error))
            if invalid is None:
                raise
            raise leads_out(url, invalid[1]) from error
        return found

    # -- how they are made -------------------------------------------------------------------------------------

    def _one(self, url: str, request: Callable[[Any, str], Any]) -> Any:
        store, key = self._at(url)
        try:
            return self._threads.submit(request, store, key).result()
        except Exception as error:
            raise _told(error) from error

    def _each(self, request: Callable[[Any], Any], all_of: Sequence[Any]) -> list[Any]:
        """All under way at once; an error when all have ended, because their memory is the caller's again then."""
        futures = [self._threads.submit(request, one) for one in all_of]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _at(self, url: str) -> tuple[Any, str]:
        """The bucket of a URL, and what is left of it."""
        bucket, _, key = url.partition("://")[2].partition("/")
        key = key.rstrip("/")
        if any(part in ("", ".", "..") for part in key.split("/")) and key:
            raise CannotServe(f"obstore knows no object with the name {key!r}")
        with _lock:
            store = self._buckets.get(bucket)
            if store is None:
                try:
                    store = self._buckets[bucket] = self._stores.S3Store(bucket, **self._how)
                except Exception as error:  # an option that an older version has not, an endpoint that is none
                    raise CannotServe(f"obstore rejects the options of {bucket}: {error}") from error
        return store, key


def translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """What obstore's class of a bucket is made with, from what s3fs's would be.

    Raises:
        CannotServe: an option has no name there, or no credentials are found (fsspec says how it looked for them).

    Example:
        >>> how = translated({"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9000"})
        >>> how["endpoint"], how["region"], how["credential_provider"]()["access_key_id"]
        ('http://127.0.0.1:9000', 'us-east-1', 'k')
    """
    left = {name: value for name, value in options.items() if value is not None and name not in _ANYTHING}
    client = {name: value for name, value in (left.pop("client_kwargs", None) or {}).items() if value is not None}
    config = dict(left.pop("config_kwargs", None) or {})
    names = (("key", "aws_access_key_id"), ("secret", "aws_secret_access_key"), ("token", "aws_session_token"))
    given = [left.pop(ours, None) or client.pop(theirs, None) for ours, theirs in names]
    anonymous, profile = left.pop("anon", False), left.pop("profile", None)
    endpoint = left.pop("endpoint_url", None) or client.pop("endpoint_url", None) or _endpoint_of_environment()
    region, verify = client.pop("region_name", None), client.pop("verify", True)
    how = _configured(config)
    if left or client or not isinstance(verify, bool):
        raise CannotServe(f"obstore has no names for {sorted([*left, *client]) or 'verify'}")
    if anonymous:
        how["skip_signature"] = True
    elif profile is None and (given[0] is None) and os.environ.get("AWS_ACCESS_KEY_ID"):
        variables = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        given = [os.environ.get(name) for name in variables]
    session = None
    if endpoint is None or not (anonymous or all(given[:2])):  # configuration files may say where and who
        session = _session(profile)
        endpoint = endpoint or session.get_scoped_config().get("endpoint_url")
        region = region or session.get_config_variable("region")
    if not anonymous:
        how["credential_provider"] = _known(*given) if all(given[:2]) else _found(session)
    if endpoint is not None:
        how["endpoint"] = endpoint
    how["region"] = region or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    how["virtual_hosted_style_request"] = False
    how["client_options"] |= {
        "allow_http": str(endpoint).startswith("http://"), "allow_invalid_certificates": not verify,
    }  # fmt: skip
    return how


def _configured(config: dict[str, Any]) -> dict[str, Any]:
    """From the options of botocore's configuration."""
    special, retries = dict(config.pop("s3", None) or {}), dict(config.pop("retries", None) or {})
    signed, style = special.pop("payload_signing_enabled", True), special.pop("addressing_style", "auto")
    connect, read = config.pop("connect_timeout", CONNECT_SECONDS), config.pop("read_timeout", READ_SECONDS)
    attempts = retries.pop("total_max_attempts", None)
    again = retries.pop("max_attempts", RETRIES) if attempts is None else attempts - 1
    retries.pop("mode", None)
    left = [*special, *retries, *(name for name in config if name not in _CONFIG)]
    if left or style not in ("auto", "path"):
        raise CannotServe(f"obstore has no names for {left or style}")
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2}
    return {
        "unsigned_payload": not signed,
        "retry_config": {"max_retries": int(again), "backoff": backoff},
        "client_options": {"timeout": TIMEOUT, "connect_timeout": f"{connect}s", "read_timeout": f"{read}s"},
    }


def _endpoint_of_environment() -> str | None:
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def _session(profile: str | None) -> Any:
    """What botocore, on which s3fs is built, knows of this machine and user."""
    try:
        botocore = importlib.import_module("botocore.session")
    except ImportError as error:
        raise CannotServe("credentials are found by botocore, which is not installed") from error
    try:
        session = botocore.Session(profile=profile)
        known = session.get_scoped_config()
    except Exception as error:
        raise CannotServe(f"botocore rejects its configuration: {error}") from error
    if "services" in known or "s3" in known:
        raise CannotServe("the configuration file has settings of S3 that botocore reads")
    return session


def _known(key: str, secret: str, token: str | None) -> Callable[[], dict[str, Any]]:
    return lambda: {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def _found(session: Any) -> Callable[[], dict[str, Any]]:
    """Credentials as botocore finds them; those of a role are renewed in time."""
    try:
        credentials = session.get_credentials()
    except Exception as error:
        raise CannotServe(f"botocore finds no credentials: {error}") from error
    if credentials is None:
        raise CannotServe("botocore finds no credentials")

    def give() -> dict[str, Any]:
        now = credentials.get_frozen_credentials()
        renewed = hasattr(credentials, "refresh_needed")
        ends = datetime.now(UTC) + timedelta(minutes=CREDENTIALS_MINUTES) if renewed else None
        return {
            "access_key_id": now.access_key, "secret_access_key": now.secret_key, "token": now.token,
            "expires_at": ends,
        }  # fmt: skip

    return give


def _told(error: Exception) -> Exception:
    """An error of obstore as what it means, without the source of its own that it prints."""
    text = str(error).partition("\n\nDebug source")[0]
    if isinstance(error, CannotServe):
        return error
    if any(word in text for word in ("PermanentRedirect", "AuthorizationHeaderMalformed", "redirect without LOCATION")):
        return CannotServe(f"the bucket is in another region: {text}")
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return PermissionError(text)
    if isinstance(error, FileNotFoundError) or "<Code>NoSuchBucket</Code>" in text:
        return FileNotFoundError(text)
    return OSError(text) if type(error).__module__.startswith("obstore") else error
