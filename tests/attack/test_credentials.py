"""Passwords in every part of a URL, given to every command that takes one: refused, and shown nowhere."""

import pytest
from rich.console import Console

from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.cache.session import make_engine, place
from openrlhf_rpo.cli import train_rpo_ray
from openrlhf_rpo.credentials import objection
from openrlhf_rpo.errors import UsageError, without_credentials
from openrlhf_rpo.launch.cluster import join, logins
from openrlhf_rpo.launch.doctor.findings import FAIL, Finding, Report
from openrlhf_rpo.launch.options import parse
from tests.unit.conftest import build_argv

PG = "postgresql+psycopg://"
DATABASES = [
    *(
        PG + rest
        for rest in ("me:SECRET@h/db", ":SECRET@h/db", "me%3ASECRET@h/db", "me:SEC/SECRET@h/db", "me:a@SECRET@h/db")
    ),
    *(PG + f"h/db?{name}=SECRET" for name in ("password", "PASSWORD", "pass%77ord", "sslpassword", "token", "api_key", "x")),
    *(
        PG + f"h/db?{rest}"
        for rest in ("user=me&password=SECRET", "SECRET", "host=h#SECRET", "user=me:SECRET", "host=h;SECRET")
    ),
    PG + "h/db?options=-csearch_path%3Da%20-cmy.password%3DSECRET",
    PG + "h/db?options=-cmy.password%3DSECRET",
    *(
        PG + rest
        for rest in ("h/db#SECRET", "h:SECRET/db", "h/db%3Fpassword=SECRET", "me/a:SECRET@h/db", "/db password=SECRET")
    ),
    *(
        "postgresql://me:SECRET@h/db",
        "postgres://me:SECRET@h",
        "mysql://me:SECRET@h/db",
        "POSTGRESQL+PSYCOPG://me:SECRET@h/d",
    ),
    *("postgresql+psycopg:/me:SECRET@h/db", "postgresql+psycopg//me:SECRET@h/db", "//me:SECRET@h/db", "me:SECRET@h/db"),
    *(PG + rest for rest in ("h/db?port=SECRET", "h/db?port=1,SECRET")),
    *("sqlite:///c.db?password=SECRET", "sqlite:///c.db#SECRET", "sqlite://me:SECRET@h/c.db", " " + PG + "me:SECRET@h/db"),
]
SERVERS = [
    *("http://me:SECRET@h/", "http://SECRET@h/", "https://h/?token=SECRET", "http://h/?SECRET", "http://h/#SECRET"),
    *("http://h/a,http://me:SECRET@h/b", "http://me:SE,SECRET@h/", "HTTP://me:SECRET@h/", "http:/me:SECRET@h/"),
    *(
        "http:me:SECRET@h",
        "http://me%3ASECRET%40h/",
        "http://h/%3Ftoken=SECRET",
        "r.py,http://me:SECRET@h/",
        "me:SECRET@h:80/",
    ),
]
SETTINGS = [
    *("host=h password=SECRET", "password = SECRET dbname=d", "api_key=SECRET"),
    "jdbc:postgresql://h/db?password=SECRET",
    "http://h/a;token=SECRET",
    "x://h/a&b=SECRET",
]
HARMLESS = [
    *(
        PG + rest
        for rest in ("me@h:5432/db", "h", "me@/db?host=/tmp/s", "me%40server@h/db", "h1,h2/db?port=1", "[::1]:5/db")
    ),
    *(PG + rest for rest in ("h/db?options=-csearch_path%3Da", "h/db@40", "/db@40", "h/db?passfile=/p&sslmode=require")),
    *(
        "http://127.0.0.1:5000/a,https://h/b",
        "sqlite:////a/b.db@40",
        "runs/a:b@40",
        "d.jsonl:solution",
        "f.py:Name",
        "a@b/c",
    ),
    *("{}", "Question: see http://h/?q={}", "C:\\a", "1e-6", "a=b"),
    *("Secret={}", "token = {}", "One token = 5 cents. How much are two?"),
]
COMMANDS = [
    *(["cache", "info", "{}"], ["cache", "info", "a", "{}"], ["report", "{}"], ["report", "A={}"], ["watch", "{}"]),
    *(["train", "--rpo.cache.url", "{}"], ["train", "--rpo.cache.url={}", "--dry-run"], ["train", "{}"]),
    *(["doctor", "--rpo.init.source", "{}"], ["eval", "--rpo.cache.urll", "{}"], ["demo", "{}"]),
]


def output(capfd, words):
    capfd.readouterr()
    try:
        status = train_rpo_ray.main(words[1:]) if words[0] == "-m" else main_of(words)
    except SystemExit as end:  # argparse
        status = end.code
    captured = capfd.readouterr()
    return status, captured.out + captured.err


def main_of(words):
    from openrlhf_rpo.cli.main import main

    return main(words)


@pytest.mark.parametrize("url", DATABASES + SERVERS + SETTINGS)
def test_a_url_with_a_secret_is_refused_by_every_command(capfd, url):
    for command in COMMANDS:
        status, said = output(capfd, [word.format(url) for word in command])
        assert status == 1 and "could hold a password or token" in said and "Traceback" not in said, (command, said)
        assert "SECRET" not in said


@pytest.mark.parametrize("option", ["--reward.remote_url", "--rpo.cache.url", "--data.prompt_dataset"])
def test_the_training_module_refuses_it_too_and_names_the_option(capfd, option):
    status, said = output(capfd, ["-m", *build_argv(), option, "https://me:SECRET@h/x"])
    assert status == 1 and f"error: {option}: this URL is refused" in said and "SECRET" not in said


@pytest.mark.parametrize("text", HARMLESS)
def test_what_holds_no_secret_is_taken(text):
    assert objection(text) is None


@pytest.mark.parametrize("url", [url for url in DATABASES if "sqlite:///" not in url])
def test_the_cache_itself_takes_and_quotes_no_secret(url):
    for use in (place, make_engine):
        with pytest.raises(CacheError) as refusal:
            use(url)
        assert "SECRET" not in str(refusal.value) and "PGPASSWORD" in str(refusal.value)


def test_a_key_of_wandb_is_refused_and_a_word_is_not_stored():
    with pytest.raises(UsageError, match="set WANDB_API_KEY") as refusal:
        parse(build_argv(logger__wandb__key="0123456789abcdef" * 3))
    assert "0123" not in str(refusal.value)
    assert parse(build_argv(logger__wandb__key="SECRET")).logger.wandb.key == "on"
    assert parse(build_argv()).logger.wandb.key is None


def test_an_address_of_ray_with_a_login_is_not_quoted():
    with pytest.raises(UsageError) as refusal:
        join("ray://me:SECRET@h:10001")
    assert "SECRET" not in str(refusal.value)


def test_what_other_packages_say_is_shown_without_logins(capsys):
    text = "no answer from 'https://me:SE@SECRET@h/a?token=SECRET', http://h/b?x=SECRET&y=1 or http://h/c#d"
    hidden = "no answer from 'https://***@h/a?***', http://h/b?*** or http://h/c#d"
    assert without_credentials(text) == hidden
    url = "postgresql+psycopg://rpo@h/runs"  # advised, to be used as it is: it can hold no password
    assert without_credentials(f"{url}, postgresql+psycopg://me:SECRET@h/d") == f"{url}, postgresql+psycopg://***@h/d"
    report = Report(as_json=False)
    report._console = Console(width=200)
    report.add([Finding(FAIL, "model", text)])
    assert "SECRET" not in capsys.readouterr().out + str(report.document())


def test_the_trainer_gets_the_logins_of_the_driver(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "SECRET")
    monkeypatch.setenv("WANDB_API_KEY", "SECRET")
    assert {"PGPASSWORD": "SECRET", "WANDB_API_KEY": "SECRET"}.items() <= logins().items() and "HOME" not in logins()
