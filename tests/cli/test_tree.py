"""`glass tree`, run as people run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from rich.cells import cell_len

from glassformer.see.schema import schema
from glassformer.see.tree import Tree
from tests.cli.test_cli import failed, glass
from tests.see.test_views import make


def test_tree_drawing(smollm2: Path) -> None:
    done = glass("tree", "The capital of France is", "--raw", "--width", "2", "--depth", "2", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert lines[0].startswith('smollm2: 6 nodes after "The capital of France is" ──')
    assert lines[1] == "the 2 likeliest tokens at each of 2 levels"
    assert any(line.startswith("├─ ● ␣Paris  ") and line.endswith("% · at 0") for line in lines)
    assert any(line.startswith("●  greedy   Paris.") for line in lines)
    assert sum("─ ●" in line for line in lines) == 2
    assert sum("─ ○" in line for line in lines) == 4


def test_tree_as_json(tiny_qwen3: Path) -> None:
    words = ("tree", "how are you?", "-m", str(tiny_qwen3), "--system", "Be kind.", "-w", "2", "-d", "2", "--json")
    found = json.loads(glass(*words).stdout)
    jsonschema.Draft202012Validator(schema(Tree)).validate(found)
    assert "Be kind." in found["prompt"]
    assert (found["width"], found["depth"], found["nodes"], found["focus"]) == (2, 2, 6, [])
    first = found["root"]["children"][0]
    assert first["path_probability"] == pytest.approx(first["probability"])
    second = first["children"][1]
    assert second["path_probability"] == pytest.approx(first["probability"] * second["probability"])
    other = json.loads(
        glass(*words, "--template", "enable_thinking=true", "--executor", "plain", "--dtype", "float32").stdout
    )
    assert len(other["prompt_ids"]) < len(found["prompt_ids"])


def test_at_and_force(tiny_qwen3: Path) -> None:
    words = ("tree", "-m", str(tiny_qwen3), "--raw", "-w", "2", "-d", "2", "--json")
    grown = json.loads(glass(*words, "--at", "1.0", stdin="Today\n").stdout)
    assert (grown["prompt"], grown["focus"], grown["nodes"]) == ("Today", [1, 0], 12)
    assert len(grown["root"]["children"][1]["children"][0]["children"][0]["children"]) == 2
    forced = json.loads(glass(*words, "--force", " dog", "Today").stdout)
    assert forced["nodes"] == 6 + 1 + 6
    node = forced["root"]["children"][forced["focus"][0]]
    assert (node["text"], node["forced"], len(node["children"])) == (" dog", True, 2)
    both = json.loads(glass(*words, "--force", " dog runs", "--at", "0.1", "Today").stdout)
    assert both["focus"][:2] == [0, 1]
    assert len(both["focus"]) == 4
    assert both["nodes"] == 6 + 2 + 6
    ended = json.loads(glass(*words, "--force", "<|im_end|>", "Today").stdout)
    assert ended["root"]["children"][ended["focus"][0]]["finish"] == "eos"


def test_a_large_tree_is_shortened(tiny_qwen3: Path) -> None:
    words = ("tree", "Today", "--raw", "-m", str(tiny_qwen3), "-w", "4")
    short, whole = glass(*words).stdout, glass(*words, "--all").stdout
    assert "of them; --all shows all." in short
    assert "more (--all)" in short
    assert "--all" not in whole
    assert len(whole.splitlines()) > 84 > len(short.splitlines()) - 40


def test_tree_of_an_encoder_decoder(tmp_path: Path) -> None:
    make(tmp_path, "t5", "seq2seq")
    shown = glass("tree", "the cat sat", "-m", str(tmp_path)).stdout
    assert "\nthe cat sat ▶ <pad>\n" in shown
    assert " · ends\n" in shown


@pytest.mark.processes
def test_progress_bar_on_a_terminal(tiny_qwen3: Path) -> None:
    done = glass("tree", "Today", "--raw", "-m", str(tiny_qwen3), FORCE_COLOR="1", TERM="xterm")
    assert " reads" in done.stderr
    assert "39/39" in done.stderr
    assert "\x1b[1;32m● " in done.stdout  # the greedy path


def test_tree_does_not_import_torch(smollm2: Path) -> None:
    code = "import sys; sys.argv = ['glass', 'tree', '--raw', 'Hi', '-d', '1']\nfrom glassformer.cli import main\n"
    code += "try: main()\nexcept SystemExit as left: assert not left.code\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_tree_help() -> None:
    shown = glass("tree", "--help").stdout
    for word in ("--width", "--depth", "--at", "--force", "--raw", "--json", "Example"):
        assert word in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("",), "the prompt is empty. Say something."),
        (("hi", "--at", "0,1"), "--at '0,1' is not the numbers of children, joined by dots, such as 0.2."),
        (("hi", "--at", "0.-1"), "--at '0.-1' is not the numbers of children"),
        (("hi", "--at", "0..1"), "--at '0..1' is not the numbers of children"),
        (("hi", "--at", "2.7"), "there is no node 2.7: node 2 has 3 children (0 to 2)."),
        (("hi", "--at", "0.0.0.0"), "there is no node 0.0.0.0: node 0.0.0 has no children."),
        (("hi", "--force", ""), "the text to force has no tokens. Give at least one character."),
        (("hi", "--width", "0"), "width is 0; it must be from 1 to the 151,936 tokens that"),
        (("hi", "--depth", "0"), "depth is 0; it must be 1 or more levels."),
        (("hi", "-w", "7", "-d", "7"), "the tree has 960,799 nodes; 100,000 is the most. Take a smaller width or depth."),
        (("hi", "-w", "1", "-d", "300"), "1 token and 300 levels do not fit into the model's context of 256."),
    ],
)
def test_tree_errors(words: tuple[str, ...], said: str, tiny_qwen3: Path) -> None:
    message = failed(glass("tree", "--raw", "-m", str(tiny_qwen3), *words))
    assert message.startswith("glass: ")
    assert said in message
    assert len(message.splitlines()) == 1


def test_tree_refuses_an_encoder(minilm: Path) -> None:
    assert "reads text and writes none" in failed(glass("tree", "hi", "-m", "minilm"))
