"""The arithmetic of secure aggregation: keys, shares, masks, and numbers with a fixed point.

Bonawitz et al. (CCS 2017): to its numbers, modulo 2^64, a client adds a mask of its own and one for each
other client, who subtracts it. Key pairs, their agreement, encryption and secret sharing are Flower's; a
mask is the key stream of ChaCha20. Whatever is derived is bound to the session: the run, the round, who
takes part, and with which keys.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption
from flwr.supercore.primitives import asymmetric
from numpy.typing import NDArray
from torch import Tensor

from fedrecall import trees
from fedrecall.errors import Malformed, UserError

FEWEST = 3
"""Clients of a round: of two, each would know the other's upload from the mean."""
SEED = 32
"""Bytes of the seed of a client's own mask."""
DIGEST = 32
"""Bytes of a share's digest."""
SCALAR = 48
"""Bytes of a private key on the curve P-384."""
BITS = 40
"""Of a number, after the point."""
LIMIT = 2.0 ** (62 - BITS)
"""What every number is smaller than: then so is a weighted mean of them, and 64 bits hold it."""

Vector = NDArray[np.uint64]


def threshold(members: int) -> int:
    """How many clients' shares make a secret: more than half.

    A client answers once, with one kind of share of each other client. So a server that told some that a
    client is there and others that it is gone would not get enough of both kinds.
    """
    return members // 2 + 1


def present(members: int) -> int:
    """How many uploads a sum must have: a majority, and never so few that one tells of another."""
    return max(FEWEST, threshold(members))


# Keys.


def key_pair() -> tuple[bytes, bytes]:
    """A private key as a number, and its public key as PEM."""
    private, public = asymmetric.generate_key_pairs()
    scalar = private.private_numbers().private_value.to_bytes(SCALAR, "big")
    return scalar, asymmetric.public_key_to_bytes(public)


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return asymmetric.public_key_to_bytes(_private(private).public_key())


def belong(private: bytes, public: bytes) -> bool:
    """Whether these are a key pair."""
    try:
        return public_of(private) == public
    except ValueError:  # no number of the curve
        return False


def _private(scalar: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(scalar, "big"), ec.SECP384R1())


def public_key(pem: bytes) -> ec.EllipticCurvePublicKey:
    """The key in a PEM text, or `Malformed`."""
    try:
        key = asymmetric.bytes_to_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Malformed("a public key cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise Malformed("a public key is not on the curve P-384")
    return key


def check_public_key(pem: bytes) -> None:
    """`Malformed` if it is no key, or not written as `key_pair` writes it, so that one key is one text."""
    if asymmetric.public_key_to_bytes(public_key(pem)) != pem:
        raise Malformed("a public key is not written as it should be")


def bind(
    run: str, round_number: int, clients: Sequence[int], sealing: Sequence[bytes], masking: Sequence[bytes]
) -> bytes:
    """What distinguishes a round from every other: a digest of the run, the round, and all public keys."""
    text = [run, round_number, list(clients), [k.hex() for k in sealing], [k.hex() for k in masking]]
    return hashlib.sha256(json.dumps(text).encode()).digest()


def _derived(secret: bytes, session: bytes, purpose: str) -> bytes:
    info = f"fedrecall secure aggregation 1: {purpose}".encode()
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=session, info=info).derive(secret)


def _agreed(private: bytes, public: bytes, session: bytes, purpose: str) -> bytes:
    """What the owners of two key pairs can both derive and nobody else can."""
    shared = symmetric_encryption.generate_shared_key(_private(private), public_key(public))
    return _derived(shared, session, purpose)


# Secrets, shared among the clients.


def shares(secret: bytes, members: int) -> list[bytes]:
    """A share of the secret for each member; fewer than the threshold say nothing about it."""
    made: list[bytes] = shamir.create_shares(secret, threshold(members), members)
    return made


def joined(given: Sequence[bytes], members: int) -> bytes:
    """The secret of which these are shares, of the threshold or more; ValueError if they do not fit."""
    return shamir.combine_shares(list(given[: threshold(members)]))


def share_size(secret: int) -> int:
    """Bytes of a share of a secret of so many bytes: its number, and the secret padded to 16s."""
    return 4 + 16 * (secret // 16 + 1)


def parcel_size() -> int:
    """Bytes of a member's two shares of another's secrets."""
    return share_size(SEED) + share_size(SCALAR)


def sealed_size(parcel: int) -> int:
    """Bytes of so many when sealed: a Fernet token, padded to 16s, with 57 bytes more, in base 64."""
    return 4 * -(-(57 + 16 * (parcel // 16 + 1)) // 3)


def digest(share: bytes) -> bytes:
    """What tells the server that a share is the one that was made; it does not tell the share."""
    return hashlib.sha256(share).digest()


def seal(parcel: bytes, private: bytes, public: bytes, session: bytes, sender: int, receiver: int) -> bytes:
    """What the receiver alone can read, and nobody but the sender can have made."""
    key = _agreed(private, public, session, f"shares from {sender} to {receiver}")
    return symmetric_encryption.encrypt(base64.urlsafe_b64encode(key), parcel)


def unseal(sealed: bytes, private: bytes, public: bytes, session: bytes, sender: int, receiver: int) -> bytes:
    """What the sender has sealed for the receiver in this session, or `Malformed`."""
    key = _agreed(private, public, session, f"shares from {sender} to {receiver}")
    try:
        return symmetric_encryption.decrypt(base64.urlsafe_b64encode(key), sealed)
    except InvalidToken as error:
        raise Malformed(f"what should be client {sender}'s shares for it was not made for it now") from error


# Masks.


def own_mask(seed: bytes, session: bytes, client: int, size: int) -> Vector:
    """What a client adds, and the server subtracts once others have revealed the seed."""
    return _stream(_derived(seed, session, f"own mask of {client}"), size)


def pair_mask(private: bytes, public: bytes, session: bytes, client: int, other: int, size: int) -> Vector:
    """What the client adds for the other; what the other adds for the client is its negative."""
    low, high = sorted((client, other))
    mask = _stream(_agreed(private, public, session, f"mask of {low} and {high}"), size)
    return mask if client == low else np.negative(mask)


def _stream(key: bytes, size: int) -> Vector:
    """Numbers that without the key cannot be told from random ones; every key is used once."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), dtype="<u8").astype(np.uint64)


# Numbers.


def fixed(tree: Any, weight: float) -> Any:
    """The tree times a weight of at most 1, as whole numbers of 2^-40; UserError where that cannot be."""

    def whole(t: Tensor) -> Tensor:
        exact = t.detach().cpu().double()
        if not bool((exact.abs() < LIMIT).all()):  # NaN is not, either
            raise UserError(
                f"its upload has a number that is not smaller than {LIMIT:,.0f}, as secure aggregation needs."
            )
        return (exact * (weight * 2.0**BITS)).round().to(torch.int64)

    return trees.transform(whole, tree)


def real(template: Any, total: Vector) -> Any:
    """The tree that a sum of `fixed` ones stands for, in float64; `Malformed` if a mask is left on it."""
    numbers = total.view(np.int64) / 2.0**BITS
    if np.abs(numbers).max() > LIMIT:  # with a mask on it every second number is that large
        raise Malformed("the masks do not come off the sum of the uploads")
    return shaped(template, numbers)


def flat(tree: Any) -> Vector:
    """A tree of whole numbers as one vector, in the order of the names."""
    return np.concatenate([t.numpy().reshape(-1).view(np.uint64) for _, t in _named(tree)])


def shaped(template: Any, vector: NDArray[Any]) -> Any:
    """The vector as a tree like the template."""
    return trees.restore(template, dict(_parts(template, vector)))


def count(template: Any) -> int:
    """How many numbers a tree has."""
    return sum(t.numel() for _, t in trees.leaves(template))


def _parts(template: Any, vector: NDArray[Any]) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for name, like in _named(template):
        yield name, torch.from_numpy(vector[start : start + like.numel()]).reshape(like.shape)
        start += like.numel()


def _named(tree: Any) -> list[tuple[str, Tensor]]:
    found: Mapping[str, Tensor] = trees.arrays(tree)
    return sorted(found.items(), key=itemgetter(0))
