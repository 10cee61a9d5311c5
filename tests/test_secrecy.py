import shlex

import pytest

from fedrecall import secrecy


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mlflow:uri=http://bob:hunter2@host:5000", "mlflow:uri=http://bob:***@host:5000"),
        ("http://bob:p@ss@host/a and //:x@y", "http://bob:***@host/a and //:***@y"),
        ("mysql://h/db?user=bob&password=hunter2&a=1", "mysql://h/db?user=bob&password=***&a=1"),
        ("http://host:5000/a:b@c", "http://host:5000/a:b@c"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("http://bob@host", "http://bob@host"),
        ("https://ghp_0123456789abcdef@host/a", "https://***@host/a"),
        (
            "https://a23456789012345@host and https://a234567890123456@host",
            "https://a23456789012345@host and https://***@host",
        ),
    ],
)
def test_addresses_are_shown_without_passwords(text, shown):
    assert secrecy.in_text(text) == shown
    assert secrecy.in_text(shown) == shown


@pytest.mark.parametrize("name", ["token", "api-key", "PASSWORD", "client_secret", "key", "credential-file"])
def test_commands_are_shown_without_what_their_options_name_as_secret(name):
    words = ["run", f"--{name}", "hunter2", "--out", "a b", f"-{name}=hunter2", "x://u:hunter2@h", "--token"]
    shown = secrecy.in_words(words)
    assert shown == ["run", f"--{name}", "***", "--out", "a b", f"-{name}=***", "x://u:***@h", "--token"]
    assert secrecy.in_command(shlex.join(words)) == shlex.join(shown)


def test_a_value_that_looks_like_an_option_hides_nothing_after_it():
    words = ["--password", "--my-key", "shown", "--token", "--key", "--out", "here"]
    assert secrecy.in_words(words) == ["--password", "***", "shown", "--token", "***", "--out", "here"]


@pytest.mark.parametrize("line", ["x --algorithm private:secret=true", "a 'b", "x  --out  'a' # note", ""])
def test_a_line_without_secrets_stays_as_it_is_written(line):
    assert secrecy.in_command(line) == line
