"""Signatures: AWS Signature Version 4, in a header or in the query of a URL.

What is signed is the canonical form of the request, as a text: method, path, query, some headers,
and the hash of the body. The key is made from the secret, day, region and service. Source:
"Signature Version 4 for API requests", AWS Identity and Access Management.
"""

from __future__ import annotations

import calendar
import hmac
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from cassq.gateway.errors import ActionError
from cassq.gateway.wire.credentials import Credentials, Key
from cassq.gateway.wire.http import HttpRequest

SKEW_SECONDS = 15 * 60
EXPIRES_SECONDS_MAX = 7 * 86400
CACHED_MAX = 1024
SERVICES = (b"sqs", b"sts")
_ALGORITHM = b"AWS4-HMAC-SHA256"
_UNSIGNED = b"UNSIGNED-PAYLOAD"
# These decide what a request does, so a signature without them is refused.
_NEEDED = (b"host", b"x-amz-target", b"x-amz-date", b"x-amz-content-sha256")


class _Claim(NamedTuple):
    """The parts of a signature. scope: day, region, service and a fixed word. signed, names: the
    signed headers, as a tuple and as one text."""

    access_key: str
    scope: bytes
    signed: tuple[bytes, ...]
    names: bytes


def _refused(code: str, message: str) -> ActionError:
    return ActionError(code, message, status=403)


def _incomplete(what: str) -> ActionError:
    return _refused("IncompleteSignature", f"The signature is incomplete: {what}.")


def _mismatch() -> ActionError:
    return _refused(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your"
        " AWS Secret Access Key and signing method.",
    )


class Verifier:
    """Verifies who signed a request. Cost: about six microseconds, and the hash of the body."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials: Credentials = credentials
        self._version = credentials.version
        self._keys: dict[tuple[str, bytes], bytes] = {}
        self._claims: dict[bytes, _Claim] = {}
        self._dates: tuple[bytes, float] = (b"", 0.0)

    def key_of(self, request: HttpRequest, now: float) -> Key:
        """The key that signed a request. now: wall clock, in seconds. Raises ActionError:
        MissingAuthenticationToken, IncompleteSignature, InvalidClientTokenId, RequestExpired or
        SignatureDoesNotMatch."""
        header = request.headers.get(b"authorization")
        if header is not None:
            return self._of_header(request, header, now)
        if b"X-Amz-Signature=" in request.query:
            return self._of_query(request, now)
        raise _refused(
            "MissingAuthenticationToken", "The request is not signed: give it an access key."
        )

    def _of_header(self, request: HttpRequest, header: bytes, now: float) -> Key:
        claimed, _, signature = header.rpartition(b"Signature=")
        claim = self._claims.get(claimed)
        if claim is None:
            claim = _claim_of_header(claimed)
            if len(self._claims) >= CACHED_MAX:
                self._claims.clear()
            self._claims[claimed] = claim
        date = request.headers.get(b"x-amz-date")
        if date is None:
            raise _incomplete("the header X-Amz-Date is missing")
        if abs(now - self._seconds(date)) > SKEW_SECONDS:
            raise _expired()
        for needed in _NEEDED:
            if needed in request.headers and needed not in claim.signed:
                raise _incomplete(f"the header {needed.decode()} is not signed")
        given = request.headers.get(b"x-amz-content-sha256")
        hashed = given if given == _UNSIGNED else sha256(request.body).hexdigest().encode()
        query = _canonical_query(request.query) if request.query else b""
        return self._matched(request, claim, date, query, hashed, signature)

    def _of_query(self, request: HttpRequest, now: float) -> Key:
        given = _pairs(request.query)
        if given.get(b"X-Amz-Algorithm") != _ALGORITHM:
            raise _incomplete("X-Amz-Algorithm must be AWS4-HMAC-SHA256")
        try:
            claim = _claim(given[b"X-Amz-Credential"], given[b"X-Amz-SignedHeaders"])
            date, expires = given[b"X-Amz-Date"], given[b"X-Amz-Expires"]
        except KeyError as exc:
            raise _incomplete(f"{exc.args[0].decode()} is missing") from exc
        if not expires.isdigit() or not 1 <= int(expires[:9]) <= EXPIRES_SECONDS_MAX:
            raise _incomplete(f"X-Amz-Expires must be 1 to {EXPIRES_SECONDS_MAX}")
        age = now - self._seconds(date)
        if age < -SKEW_SECONDS or age > int(expires[:9]):
            raise _expired()
        for needed in (b"host", b"x-amz-target"):
            if needed in request.headers and needed not in claim.signed:
                raise _incomplete(f"the header {needed.decode()} is not signed")
        stated = request.headers.get(b"x-amz-content-sha256")
        unsigned = stated == _UNSIGNED and b"x-amz-content-sha256" in claim.signed
        hashed = _UNSIGNED if unsigned else sha256(request.body).hexdigest().encode()
        query = _canonical_query(request.query)
        return self._matched(request, claim, date, query, hashed, given[b"X-Amz-Signature"])

    def _seconds(self, date: bytes) -> float:
        """The time that a date names, in seconds since 1970."""
        if self._dates[0] != date:
            try:
                parsed = time.strptime(date.decode("ascii"), "%Y%m%dT%H%M%SZ")
            except (ValueError, UnicodeDecodeError) as exc:
                raise _incomplete("X-Amz-Date must look like 20300101T000000Z") from exc
            self._dates = (date, float(calendar.timegm(parsed)))
        return self._dates[1]

    def _matched(
        self,
        request: HttpRequest,
        claim: _Claim,
        date: bytes,
        query: bytes,
        hashed: bytes,
        signature: bytes,
    ) -> Key:
        key = self.credentials.keys.get(claim.access_key)
        if key is None:
            raise _refused(
                "InvalidClientTokenId", "The security token included in the request is invalid."
            )
        if not claim.scope.startswith(date[:8]):
            raise _mismatch()
        given = request.headers.get
        headers = b"\n".join([b"%b:%b" % (name, given(name, b"")) for name in claim.signed])
        if b"  " in headers:
            headers = b"\n".join([b" ".join(line.split()) for line in headers.split(b"\n")])
        canonical = b"%b\n%b\n%b\n%b\n\n%b\n%b" % (
            request.method,
            _canonical_path(request.path),
            query,
            headers,
            claim.names,
            hashed,
        )
        text = b"%b\n%b\n%b\n%b" % (
            _ALGORITHM,
            date,
            claim.scope,
            sha256(canonical).hexdigest().encode(),
        )
        right = hmac.digest(self._signing_key(claim, key), text, "sha256").hex().encode()
        if not hmac.compare_digest(right, signature):
            raise _mismatch()
        return key

    def _signing_key(self, claim: _Claim, key: Key) -> bytes:
        if self._version != self.credentials.version:
            self._version = self.credentials.version
            self._keys.clear()
        which = (claim.access_key, claim.scope)
        signing = self._keys.get(which)
        if signing is None:
            signing = key.secret
            for part in claim.scope.split(b"/"):
                signing = hmac.digest(signing, part, "sha256")
            if len(self._keys) >= CACHED_MAX:
                self._keys.clear()
            self._keys[which] = signing
        return signing


def _expired() -> ActionError:
    return _refused(
        "RequestExpired",
        f"The request's date is more than {SKEW_SECONDS // 60} minutes from the gateway's, or the"
        " request has expired.",
    )


def access_key_of(request: HttpRequest) -> str:
    """The access key that a request names, unverified; "" if it names none."""
    header = request.headers.get(b"authorization", b"")
    start = header.find(b"Credential=")
    if start < 0:
        return ""
    return header[start + 11 : header.find(b"/", start)].decode("ascii", "replace")[:128]


def _claim_of_header(claimed: bytes) -> _Claim:
    """claimed: the header without the signature."""
    algorithm, _, rest = claimed.partition(b" ")
    if algorithm != _ALGORITHM:
        raise _incomplete("the header Authorization must begin with AWS4-HMAC-SHA256")
    parts: dict[bytes, bytes] = {}
    for part in rest.split(b","):
        name, _, value = part.strip().partition(b"=")
        parts[name] = value
    try:
        return _claim(parts[b"Credential"], parts[b"SignedHeaders"])
    except KeyError as exc:
        raise _incomplete(f"Authorization has no {exc.args[0].decode()}") from exc


def _claim(credential: bytes, signed: bytes) -> _Claim:
    access_key, _, scope = credential.partition(b"/")
    parts = scope.split(b"/")
    if len(parts) != 4 or parts[3] != b"aws4_request" or parts[2] not in SERVICES:
        raise _incomplete("the credential must be KEY/DAY/REGION/sqs/aws4_request")
    names = tuple(signed.split(b";"))
    if b"host" not in names or list(names) != sorted(set(names)):
        raise _incomplete("the signed headers must be sorted, and have host among them")
    return _Claim(access_key.decode("ascii", "replace"), scope, names, signed)


def _pairs(query: bytes) -> Mapping[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        found.setdefault(unquote_to_bytes(name), unquote_to_bytes(value))
    return found


def _canonical_query(query: bytes) -> bytes:
    pairs = []
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        name = unquote_to_bytes(name)
        if name != b"X-Amz-Signature":
            pairs.append((_quoted(name), _quoted(unquote_to_bytes(value))))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs)).encode()


def _quoted(text: bytes) -> str:
    return quote(text, safe="-_.~")


def _canonical_path(path: bytes) -> bytes:
    """The path, encoded once more, without dots and double slashes, as for all services but S3."""
    if path == b"/":
        return path
    steps: list[bytes] = []
    for step in path.split(b"/"):
        if step == b"..":
            steps[-1:] = []
        elif step not in (b"", b"."):
            steps.append(step)
    tail = b"/" if path.endswith(b"/") and steps else b""
    return quote(b"/" + b"/".join(steps) + tail, safe="/-_.~").encode()
