//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
)

func TestMan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := root.New(cli.Streams{})
	if err := writeMan(cmd, dir); err != nil {
		t.Fatal(err)
	}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		text, err := os.ReadFile(filepath.Join(dir, name+".1"))
		if err != nil || !strings.Contains(string(text), `.TH "`+strings.ToUpper(name)+`" "1"`) {
			t.Errorf("%s: %v", name, err)
		}
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
				visit(c)
			}
		}
	}
	visit(cmd)
	text, err := os.ReadFile(filepath.Join(dir, "throttlectl.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".SH ENVIRONMENT", "\\fBSLUICE_TOPOLOGY\\fP\n--topology: file of the topology, JSON or YAML\n", "\\fBREDISCLI_AUTH\\fP", ".SH FILES"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A bash that has the script completes commands, flags and values, with the program that is on PATH.
func TestBashCompletion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := writeCompletions(root.New(cli.Streams{}), dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"_throttlectl", "throttlectl.fish", "throttlectl.ps1"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), "throttlectl") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "throttlectl"), "../..").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// _init_completion is the package bash-completion's, as far as it matters here.
	const script = `source "$1/throttlectl.bash"
shift
_init_completion() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${words[cword]} prev=${words[cword-1]}; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_TYPE=9
COMP_POINT=${#COMP_LINE}
__start_throttlectl 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"`
	for want, words := range map[string][]string{
		"doctor":     {"throttlectl", "doc"},
		"--topology": {"throttlectl", "peek", "--topology"},
		"critical":   {"throttlectl", "doctor", "--fail-on", "cri"},
	} {
		cmd := exec.Command("bash", append([]string{"--norc", "-c", script, "bash", dir}, words...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if !strings.HasPrefix(string(out), want) {
			t.Errorf("%q: %q, %v; want %q", words, out, err, want)
		}
	}
}
