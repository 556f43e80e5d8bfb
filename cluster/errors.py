"""Every error that Raycall raises on purpose, as one tree.

    RaycallError
    ├── UsageError            the caller's input; HTTP 422, CLI exit 2
    │   ├── ConfigError
    │   ├── MalformedError    not JSON at all, or not in UTF-8; HTTP 400
    │   ├── MediaTypeError    another content type, charset or encoding; HTTP 415
    │   ├── ReusedKeyError    an idempotency key was sent before with another request; HTTP 422
    │   └── TooLargeError     HTTP 413
    ├── AuthenticationError   no key, or an unknown or revoked one; HTTP 401
    ├── ForbiddenError        the key may not do this; HTTP 403
    ├── NotFoundError         HTTP 404; also for what the key may not know to exist
    ├── ConflictError         a compare-and-swap lost; HTTP 409
    │   └── StaleError        a revision is stale; names the present one
    ├── UnavailableError      a part is down or too slow; HTTP 503
    │   ├── DeadlineError     the request's time is over; HTTP 504
    │   ├── EmbedderError
    │   ├── ShardError
    │   │   └── ShardDownError      its process is gone
    │   ├── UnreadableIndexError    an index on the disk cannot be used: trying again does not help
    │   │   └── AnalyzerError       it was built with another analyzer
    │   └── OverloadedError   HTTP 429, says when to try again
    └── IntegrityError        stored bytes are not what was written; HTTP 500
        ├── CorruptIndexError
        ├── ModelFileError
        └── VectorError       wrong dimension, NaN, infinite or zero vector

`code` is stable: clients may match on it. `detail` is for people. Errors cross process borders, so each one pickles to an
equal error.
"""

from __future__ import annotations


class RaycallError(Exception):
    """Something that Raycall itself refuses or could not do."""

    code = "raycall_error"
    http_status = 500

    def __init__(self, detail: str = "", *, field: str | None = None) -> None:
        self.detail = detail or (type(self).__doc__ or "").splitlines()[0]
        #: The name of the input field at fault, where there is one.
        self.field = field
        super().__init__(self.detail)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.detail, self.field)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), self.detail, self.field))


def _rebuild(cls: type[RaycallError], detail: str, field: str | None) -> RaycallError:
    return cls(detail, field=field)


class UsageError(RaycallError):
    """The input is not usable."""

    code = "invalid_input"
    http_status = 422


class ConfigError(UsageError):
    """The configuration is not usable."""

    code = "invalid_config"


class MalformedError(UsageError):
    """The request cannot be read."""

    code = "malformed"
    http_status = 400


class MediaTypeError(UsageError):
    """The request is in a form that the server does not read."""

    code = "unsupported_media_type"
    http_status = 415


class ReusedKeyError(UsageError):
    """The idempotency key belongs to another request."""

    code = "idempotency_key_reused"


class TooLargeError(UsageError):
    """The request is larger than the server takes."""

    code = "too_large"
    http_status = 413


class AuthenticationError(RaycallError):
    """No usable API key was given."""

    code = "unauthenticated"
    http_status = 401


class ForbiddenError(RaycallError):
    """The API key does not allow this."""

    code = "forbidden"
    http_status = 403


class NotFoundError(RaycallError):
    """There is no such thing, or none that this key may see."""

    code = "not_found"
    http_status = 404


class ConflictError(RaycallError):
    """Somebody else changed it first."""

    code = "conflict"
    http_status = 409


class StaleError(ConflictError):
    """The revision is not the present one."""

    code = "stale_revision"

    def __init__(self, detail: str = "", *, field: str | None = None, revision: int = 0) -> None:
        super().__init__(detail, field=field)
        #: The present revision; 0: there is nothing.
        self.revision = revision

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_stale, (self.detail, self.field, self.revision)


def _rebuild_stale(detail: str, field: str | None, revision: int) -> StaleError:
    return StaleError(detail, field=field, revision=revision)


class UnavailableError(RaycallError):
    """A needed part is down or too slow; try again."""

    code = "unavailable"
    http_status = 503


class DeadlineError(UnavailableError):
    """The request's time is over."""

    code = "deadline_exceeded"
    http_status = 504


class EmbedderError(UnavailableError):
    """The embedder did not answer with usable vectors."""

    code = "embedder_unavailable"


class ShardError(UnavailableError):
    """A shard did not answer."""

    code = "shard_unavailable"


class ShardDownError(ShardError):
    """The process of a shard is gone; it may be on its way back."""

    code = "shard_down"


class UnreadableIndexError(UnavailableError):
    """The index cannot be read; index again."""

    code = "index_unreadable"


class AnalyzerError(UnreadableIndexError):
    """The index was built with another analyzer; index the project again."""

    code = "analyzer_mismatch"


class OverloadedError(UnavailableError):
    """Too many requests are waiting; try again later."""

    code = "overloaded"
    http_status = 429

    def __init__(self, detail: str = "", *, field: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(detail, field=field)
        #: Seconds, 1 or more, after which trying again may help.
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_overloaded, (self.detail, self.field, self.retry_after_s)


def _rebuild_overloaded(detail: str, field: str | None, retry_after_s: int) -> OverloadedError:
    return OverloadedError(detail, field=field, retry_after_s=retry_after_s)


class IntegrityError(RaycallError):
    """Stored data is not what was written."""

    code = "integrity"


class CorruptIndexError(IntegrityError):
    """An index file does not match its manifest."""

    code = "corrupt_index"


class ModelFileError(IntegrityError):
    """A model file is missing or not the expected one."""

    code = "model_file"


class VectorError(IntegrityError):
    """A vector is not usable: wrong dimension, NaN, infinite or zero."""

    code = "bad_vector"
