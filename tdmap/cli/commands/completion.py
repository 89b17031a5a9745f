"""The command ``tdmap completion SHELL``: a script that completes commands, options and paths.

The script holds all words, so that a press of Tab starts no Python, which takes seconds to import torch.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

from tdmap.cli.answers import answer, say
from tdmap.cli.app import app
from tdmap.cli.requests import refuse

PLACES = {
    "bash": ".local/share/bash-completion/completions/tdmap",
    "zsh": ".zfunc/_tdmap",
    "fish": ".config/fish/completions/tdmap.fish",
}
"""Where each shell looks, under the home folder."""


@app.command("completion")
def completion_command(
    shell: Annotated[str | None, typer.Argument(metavar="[bash|zsh|fish]", help="Yours, if not given.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Write the script to where the shell looks.")] = False,
) -> None:
    """Print, or install, a script that completes the commands, options and paths of tdmap."""
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in PLACES:
        refuse(f"{name or 'no shell'}: completion is there for {', '.join(PLACES)}")
    text = script(name)
    if not install:
        answer({"shell": name, "script": text}, text.rstrip("\n"))
        return
    place = Path.home() / PLACES[name]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    except OSError as error:
        refuse(f"{place} was not written: {error}")
    answer({"shell": name, "installed": place}, f"installed {place}; new shells complete tdmap")
    if name == "zsh":
        say("put these into ~/.zshrc, if they are not there: fpath+=~/.zfunc; autoload -Uz compinit; compinit")


def words() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Of each command: the commands below it, and its options with what they are for."""
    root = typer.main.get_command(app)
    found: dict[str, tuple[list[str], dict[str, str]]] = {}
    _collect(root, "", found)
    return found


def _collect(command: Any, path: str, found: dict[str, tuple[list[str], dict[str, str]]]) -> None:
    options = {"--help": "Show help."}
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("-"):
                options[option] = getattr(parameter, "help", None) or ""
    names = sorted(getattr(command, "commands", ()))
    found[path] = names, options
    for name in names:
        context = type("Context", (), {"parent": None, "info_name": ""})()  # one that says: below the root
        if path:
            context = type("Context", (), {"parent": context, "info_name": path})()
        _collect(command.get_command(context, name), f"{path} {name}".strip(), found)


def script(shell: str) -> str:
    """The script for a shell."""
    return _fish() if shell == "fish" else _bash() if shell == "bash" else _ZSH + _bash()


_ZSH = "#compdef tdmap\nautoload -U +X bashcompinit && bashcompinit\n"

_BASH = """\
# Completion of tdmap, made by `tdmap completion bash`.
_tdmap() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" path="" found="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${{path:+$path }}${{COMP_WORDS[i]}}" in
            {paths}) path="${{path:+$path }}${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    if [[ "$word" != -* && -n "$path" ]]; then
        local IFS=$'\\n'
        COMPREPLY+=($(compgen -f -- "$word"))
        compopt -o filenames 2>/dev/null
    fi
}}
complete -F _tdmap tdmap
"""


def _bash() -> str:
    known = words()
    paths = " | ".join(f'"{path}"' for path in known if path)
    cases = "\n".join(
        f'        "{path}") found="{" ".join([*names, *sorted(options)])}" ;;'
        for path, (names, options) in known.items()
    )
    return _BASH.format(paths=paths, cases=cases)


def _fish() -> str:
    lines = ["# Completion of tdmap, made by `tdmap completion fish`."]
    known = words()
    for path, (names, options) in known.items():
        seen = " ".join(known[""][0]) if not path else ""
        inside = f"not __fish_seen_subcommand_from {seen}" if not path else _inside(path)
        for name in names:
            lines.append(f"complete -c tdmap -f -n '{inside}' -a {name}")
        for option, text in sorted(options.items()):
            kind = "-l" if option.startswith("--") else "-s"
            told = re.sub(r"[\\'\n]", " ", text)
            lines.append(f"complete -c tdmap -n '{inside}' {kind} {option.lstrip('-')} -d '{told}'")
    return "\n".join(lines) + "\n"


def _inside(path: str) -> str:
    return "; and ".join(f"__fish_seen_subcommand_from {name}" for name in path.split())
