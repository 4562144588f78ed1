package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// passwordEnv is where redis-cli, too, looks for a password: a command line can be read by everybody on the host.
const passwordEnv = "REDISCLI_AUTH"

const passwordHelp = `A password on the command line, in the URL, can be read by everybody on the host. Leave it out, and it is read from
--password-file, from the terminal with --ask-password, or else from REDISCLI_AUTH in the environment, as redis-cli does.`

// passwordFlags say where the password for Redis servers is.
type passwordFlags struct {
	file string
	ask  bool

	cmd   *cobra.Command // whose terminal is asked
	asked *string        // what was typed there, once
}

func (p *passwordFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&p.file, "password-file", "", "`file` with the password for the servers; without it, "+passwordEnv+" has it")
	flags.BoolVar(&p.ask, "ask-password", false, "ask for the password for the servers on the terminal")
}

// given reports whether a flag says where the password is.
func (p *passwordFlags) given() bool { return p.file != "" || p.ask }

// read returns the password; empty for none.
func (p *passwordFlags) read() (string, error) {
	switch {
	case p.file != "" && p.ask:
		return "", usage(errors.New("--password-file and --ask-password don't go together"))
	case p.file != "":
		return readSecret(p.file)
	case !p.ask:
		return os.Getenv(passwordEnv), nil
	case p.asked == nil:
		typed, err := promptSecret(p.cmd)
		if err != nil {
			return "", err
		}
		p.asked = &typed
	}
	return *p.asked, nil
}

// promptSecret asks the terminal, which doesn't show what is typed.
func promptSecret(cmd *cobra.Command) (string, error) {
	if !isTerminal(cmd.InOrStdin()) {
		return "", usage(errors.New("--ask-password needs a terminal: --password-file or " + passwordEnv + " do without"))
	}
	in := int(cmd.InOrStdin().(*os.File).Fd())
	before, err := term.GetState(in)
	if err != nil {
		return "", err
	}
	type answer struct {
		text []byte
		err  error
	}
	typed := make(chan answer, 1)
	fmt.Fprint(cmd.ErrOrStderr(), "Password: ")
	defer fmt.Fprintln(cmd.ErrOrStderr())
	go func() {
		text, err := term.ReadPassword(in)
		typed <- answer{text, err}
	}()
	select {
	case a := <-typed:
		return string(a.text), a.err
	case <-cmd.Context().Done(): // Ctrl-C, for example; whoever reads stays until the program ends
		_ = term.Restore(in, before)
		return "", context.Cause(cmd.Context())
	}
}

// readSecret is what a file holds; nothing without a file.
func readSecret(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path) // which may be a pipe
	return strings.TrimRight(string(text), "\r\n"), err
}
