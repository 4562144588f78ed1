package cluster

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
)

// PasswordEnv is the variable of redis-cli: all users of a host can read its command lines.
const PasswordEnv = "REDISCLI_AUTH"

// PasswordFile is the flag of the file with the password.
const PasswordFile = "password-file"

const PasswordHelp = `A password on the command line, in the URL, can be read by everybody on the host. Leave it out, and it is read from
--password-file, from the terminal with --ask-password, or else from REDISCLI_AUTH in the environment, as redis-cli does.`

// PasswordFlags select where the password for Redis servers comes from.
type PasswordFlags struct {
	file string
	ask  bool

	*cli.Factory
	typed *string // on the terminal, once
}

func (p *PasswordFlags) Register(f *cli.Factory, flags *pflag.FlagSet) {
	p.Factory = f
	flags.StringVar(&p.file, PasswordFile, "", "`file` with the password for the servers; without it, "+PasswordEnv+" has it")
	flags.BoolVar(&p.ask, "ask-password", false, "ask for the password for the servers on the terminal")
}

// Given reports whether a flag selects a source.
func (p *PasswordFlags) Given() bool { return p.file != "" || p.ask }

// read returns the password, empty without any.
func (p *PasswordFlags) read(ctx context.Context) (string, error) {
	switch {
	case p.file != "" && p.ask:
		return "", cli.Usage(errors.New("--password-file and --ask-password don't go together"))
	case p.file != "":
		return readSecret(p.file)
	case !p.ask:
		return p.Settings.Env(PasswordEnv), nil
	case p.typed == nil:
		typed, err := p.prompt(ctx)
		if err != nil {
			return "", err
		}
		p.typed = &typed
	}
	return *p.typed, nil
}

func (p *PasswordFlags) prompt(ctx context.Context) (string, error) {
	if !terminal.IsTerminal(p.In) {
		return "", cli.Usage(errors.New("--ask-password needs a terminal: --password-file or " + PasswordEnv + " do without"))
	}
	return terminal.ReadPassword(ctx, p.In.(*os.File), p.ErrOut)
}

// readSecret reads a file; without a path it is empty.
func readSecret(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path) // which may be a pipe
	return strings.TrimRight(string(text), "\r\n"), err
}
