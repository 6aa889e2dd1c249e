"""A stand-in for Ollama's renderer: the real `text/template` of Go, with the names that Ollama gives a template.

It is a simulation: Ollama's own program is not here. As in it, consecutive turns of one role are joined, system prompts
are also given as `.System`, and a missing key is empty.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

GO = shutil.which("go")

_SOURCE = """package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type Message struct{ Role, Content string }

type Case struct {
	Template string
	Messages []*Message
}

func render(one Case) string {
	var system []string
	var joined []*Message
	for _, message := range one.Messages {
		if message.Role == "system" {
			system = append(system, message.Content)
		}
		if last := len(joined) - 1; last >= 0 && joined[last].Role == message.Role {
			joined[last].Content += "\\n\\n" + message.Content
		} else {
			joined = append(joined, message)
		}
	}
	var out bytes.Buffer
	parsed := template.Must(template.New("").Option("missingkey=zero").Parse(one.Template))
	values := map[string]any{"System": strings.Join(system, "\\n\\n"), "Messages": joined, "Response": ""}
	if err := parsed.Execute(&out, values); err != nil {
		panic(err)
	}
	return out.String()
}

func main() {
	var cases []Case
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	rendered := []string{}
	for _, one := range cases {
		rendered = append(rendered, render(one))
	}
	_ = json.NewEncoder(os.Stdout).Encode(rendered)
}
"""


def render(folder: Path, cases: list[tuple[str, list[dict[str, str]]]]) -> list[str]:
    """Every template with its conversation, by Go."""
    assert GO is not None
    program = folder / "render.go"
    program.write_text(_SOURCE, encoding="utf-8")
    asked = [
        {"Template": template, "Messages": [{"Role": one["role"], "Content": one["content"]} for one in messages]}
        for template, messages in cases
    ]
    own = {"GOCACHE": str(folder / "cache"), "GOFLAGS": "-mod=mod", "GO111MODULE": "off", "GOPATH": str(folder / "go")}
    done = subprocess.run(
        [GO, "run", str(program)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, **own},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rendered: list[str] = json.loads(done.stdout)
    return rendered
