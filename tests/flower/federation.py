"""A real federation on this machine: certificates, a SuperLink and SuperNodes as processes of their own."""

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedrecall.flower import APP

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def make_certificates(folder: Path) -> None:
    """ca.crt, server.pem and server.key for 127.0.0.1 and localhost."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)

    def build(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = (
        build("test CA", ca_key)
        .issuer_name(ca_name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        build("localhost", key)
        .issuer_name(ca_name)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(_pem(key))


def make_key(path: Path) -> Path:
    """An OpenSSH key pair of the kind that SuperNodes use: path and path.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path.write_bytes(private)
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return path


class LocalFederation:
    """One SuperLink and its SuperNodes on loopback, with TLS and authenticated nodes."""

    def __init__(self, folder: Path, launcher: tuple[str, ...] = ("-m", "fedrecall.flower.supernode")):
        self.folder, self.launcher = folder, launcher
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
            "FEDRECALL_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        make_certificates(folder / "certificates")
        (folder / "flwr").mkdir(exist_ok=True)
        (folder / "flwr" / "config.toml").write_text(
            "[superlink]\n[superlink.here]\n"
            f'address = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "certificates" / "ca.crt"}"\n'
        )

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )
        log.close()
        self.processes[name] = process
        return process

    def start_link(self) -> None:
        c = self.folder / "certificates"
        self.start(
            "superlink",
            *(str(BIN / "flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", str(c / "ca.crt"), "--ssl-certfile", str(c / "server.pem")),
            *("--ssl-keyfile", str(c / "server.key"), "--enable-supernode-auth"),
            *("--database", str(self.folder / "link.db"), "--disable-runtime-dependency-installation"),
        )
        self.until(lambda: self._listening(), 60, "the SuperLink to listen")

    def _listening(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def register(self, key: Path) -> None:
        self.flwr("supernode", "register", str(key.with_suffix(".pub")), "here")

    def start_node(
        self, name: str, key: Path, config: str, ca: Path | None = None
    ) -> subprocess.Popen[bytes]:
        ca = ca or self.folder / "certificates" / "ca.crt"
        return self.start(
            name,
            *(sys.executable, *self.launcher, "--superlink", f"127.0.0.1:{self.port}"),
            *("--root-certificates", str(ca), "--auth-supernode-private-key", str(key)),
            *("--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config),
        )

    def flwr(self, *arguments: str, timeout: float = 120) -> str:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, **settings: object) -> int:
        """Start a run; its id."""
        given = " ".join(f"{k.replace('__', '.')}={json.dumps(v)}" for k, v in settings.items())
        said = self.flwr("run", str(APP), "here", "--run-config", given, "--format", "json")
        return int(json.loads(said)["run-id"])

    def status(self, run: int) -> str:
        said = json.loads(self.flwr("ls", "here", "--run-id", str(run), "--format", "json"))
        return str(said["runs"][0]["status"])

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def until(self, true: object, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not true():  # type: ignore[operator]
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
            time.sleep(0.1)

    def stop(self, name: str, how: int = signal.SIGTERM, wait: float = 15) -> None:
        """End a process and, should it leave any, its children."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)

    def close(self) -> None:
        for name in list(self.processes):
            self.stop(name, wait=5)


def app_config() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "config"
    ]
    return found
