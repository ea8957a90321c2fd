"""Options of ``ncclkv``: those of other launchers, and wrong ones, with the line to type."""

from __future__ import annotations

import argparse

import pytest

from ncclkv.cli import allocation, main, options
from ncclkv.cli.parser import Parser

BY_ITSELF = (
    "is an option of another launcher; ncclkv run places and connects the ranks by itself, and "
    "gives them its environment. Type"
)


def parsed(*arguments: str) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = Parser(prog="ncclkv run")
    options.describe(parser)
    return parser.parse_args([*arguments, "--", "true"])


@pytest.mark.parametrize("name", ["-n", "-np", "--np"])
def test_names_of_the_number_of_ranks(name):
    assert parsed(name, "3").n == 3


@pytest.mark.parametrize("name", ["--hosts", "-H", "--host", "-host", "-hosts"])
def test_names_of_the_hosts_and_repeated_hosts(name):
    assert parsed(name, "a:1").hosts == "a:1"
    assert parsed(name, "a:1", name, "b,c").hosts == "a:1,b,c"


@pytest.mark.parametrize("name", ["--hostfile", "-f", "-hostfile", "--machinefile"])
def test_names_of_the_hostfile(name):
    assert str(parsed(name, "x").hostfile) == "x"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--nproc-per-node 2 ddp.py -e 3", ": ncclkv run -n 2 -- python ddp.py -e 3"),
        ("--nproc_per_node=2 ddp.py", ": ncclkv run -n 2 -- python ddp.py"),
        ("--nproc-per-node auto ddp.py", ": ncclkv run -n RANKS -- python ddp.py"),
        ("--nnodes 1 --nproc-per-node 4 ddp.py", ": ncclkv run -n 4 -- python ddp.py"),
        ("-ppn 2 -n 8 -- python ddp.py", ": ncclkv run -n 8 -- python ddp.py"),
        ("--num_processes 4 ddp.py", ": ncclkv run -n 4 -- python ddp.py"),
        ("-m pkg.train", ": ncclkv run -n RANKS -- python -m pkg.train"),
        (
            "--nproc-per-node 2 -m pkg.train --epochs 3",
            ": ncclkv run -n 2 -- python -m pkg.train --epochs 3",
        ),
        ("--standalone -n 2 ddp.py", ": ncclkv run -n 2 -- python ddp.py"),
        (
            "--nnodes=2 --nproc_per_node=4 --node_rank=0 --master_addr h ddp.py",
            ", once, on one host: ncclkv run --hosts HOST1:4,HOST2:4 -- python ddp.py",
        ),
        (
            "--nnodes 3 --nproc-per-node 4 ddp.py",
            ", once, on one host: ncclkv run --hosts HOST1:4,HOST2:4,... -- python ddp.py",
        ),
        (
            "--nproc-per-node 4 --hosts a,b ddp.py",
            ", once, on one host: ncclkv run --hosts a:4,b:4 -- python ddp.py",
        ),
        ("--nnodes 2 --hostfile x ddp.py", ": ncclkv run --hostfile x -- python ddp.py"),
    ],
)
def test_options_of_other_launchers_are_refused_with_the_line_to_type(
    arguments, said, capsys, monkeypatch
):
    for name in allocation._HOST_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert main(["run", *arguments.split()]) == 2
    name = arguments.replace("=", " ").split()[0]
    shown = capsys.readouterr().err
    assert shown.endswith(f"{BY_ITSELF}{said}\n"), shown
    if "nnodes" not in arguments:
        assert shown.startswith(f"ncclkv: {name} is an option of another launcher"), shown


def test_in_an_allocation_the_line_to_type_names_no_hosts(capsys, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert main(["run", "--nnodes=2", "--nproc_per_node=4", "ddp.py"]) == 2
    assert capsys.readouterr().err.endswith(". Type: ncclkv run -n 8 -- python ddp.py\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "walk",
            "there is no command 'walk'; there are run, status, explain, trace, doctor. Programs",
        ),
        ("run -n four -- true", "-n four is no number of ranks; give 1 or more"),
        ("run -np4 -- true", "-n p4 is no number of ranks; give 1 or more"),
        ("run -n", "-n stands without its value; ncclkv run --help lists the options"),
        ("run --port x -- true", "--port x is no TCP port; give 0 to 65535"),
        ("run --max-restarts x true", "--max-restarts x is no number of restarts; give 0 or more"),
        ("run -n 2 --hosst a -- true", "ncclkv run has no option --hosst (did you mean --hosts?)"),
        ("run -n 2 --bogus -- true", "options of the program stand behind its name; ncclkv run --"),
        ("run --hosts a --hostfile f true", "--hostfile: not allowed with argument --hosts; ncc"),
        ("run --hosts a,,b --dry-run true", "has '', which is no host; give NAME or NAME:RANKS"),
        ("run --timeout inf true", "--timeout inf is not a number of seconds; give one above 0"),
        ("run --timeout nan true", "--timeout nan is not a number of seconds; give one above 0"),
        ("run --timeout x true", "--timeout x is not a number of seconds; give one above 0"),
        ("run --timeout 1e10 true", "--timeout 1e+10 is not a number of seconds; give one above"),
        ("explain", "the following arguments are required: directory; ncclkv explain --help lists"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(arguments, said, capsys):
    assert main(arguments.split()) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("ncclkv: "), shown
    assert shown.count("\n") == 1, shown
    assert said in shown


def test_the_help_has_our_own_names_alone(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = capsys.readouterr().out
    assert "--hosts A:4,B:4" in shown
    assert "(that of the allocation, or as many as the hosts take)" in " ".join(shown.split())
    assert "nproc" not in shown
    assert "-np" not in shown
