// Command gendocs writes throttlectl's man pages and shell completions into folders, for packages:
//
//	go run ./internal/gendocs -man DIR -completions DIR
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/root"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/settings"
)

func main() {
	log.SetFlags(0)
	man := flag.String("man", "", "`folder` for man pages")
	completions := flag.String("completions", "", "`folder` for completions of bash, zsh, fish and PowerShell")
	flag.Parse()
	cmd := root.New(cli.Streams{})
	for dir, write := range map[string]func(*cobra.Command, string) error{*man: writeMan, *completions: writeCompletions} {
		if dir == "" {
			continue
		}
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = write(cmd, dir)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

// writeMan writes a page for each command. The first one lists the variables and the file of settings, too.
func writeMan(cmd *cobra.Command, dir string) error {
	var b strings.Builder
	b.WriteString(cmd.Long + "\n\n# ENVIRONMENT\n\nA flag weighs more than its variable, and that more than the file.\n\n")
	for _, f := range settings.All(cmd) {
		fmt.Fprintf(&b, "**%s**\n: --%s: %s\n\n", settings.Variable(f.Name), f.Name, usage(f))
	}
	b.WriteString("**SLUICE_CONFIG**\n: --config\n\n**REDISCLI_AUTH**\n: the password for servers\n\n**NO_COLOR**\n: no colors on terminals\n\n" +
		"# FILES\n\n**$XDG_CONFIG_HOME/throttlectl/config.json**\n: settings, as throttlectl-config(1) says; ~/.config/throttlectl/config.json by default\n")
	cmd.Long = b.String()
	keepLines(cmd)
	cmd.DisableAutoGenTag = true
	header := doc.GenManHeader{Section: "1", Source: "Sluice", Manual: "throttlectl"}
	if os.Getenv("SOURCE_DATE_EPOCH") == "" {
		now := time.Now()
		header.Date = &now
	}
	return doc.GenManTree(cmd, &header, dir)
}

// keepLines makes indented lines of all commands' texts blocks that are not filled.
func keepLines(cmd *cobra.Command) {
	var b strings.Builder
	block := false
	for line := range strings.Lines(cmd.Long) {
		indented := strings.HasPrefix(line, "  ")
		if indented != block && line != "\n" {
			b.WriteString("\n")
		}
		if indented {
			line = "  " + line
		}
		if line != "\n" {
			block = indented
		}
		b.WriteString(line)
	}
	cmd.Long = b.String()
	for _, c := range cmd.Commands() {
		keepLines(c)
	}
}

func usage(f *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(f)
	return strings.TrimSuffix(text, " ["+settings.Variable(f.Name)+"]")
}

// writeCompletions writes files with the names under which shells look for them.
func writeCompletions(cmd *cobra.Command, dir string) error {
	for name, write := range map[string]func(path string) error{
		"throttlectl.bash": func(path string) error { return cmd.GenBashCompletionFileV2(path, true) },
		"_throttlectl":     cmd.GenZshCompletionFile,
		"throttlectl.fish": func(path string) error { return cmd.GenFishCompletionFile(path, true) },
		"throttlectl.ps1":  cmd.GenPowerShellCompletionFileWithDesc,
	} {
		if err := write(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
