// Package hash has the command that prints the form in which a secret key is counted.
package hash

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// SecretEnv has the secret where there is no --secret-file.
const SecretEnv = "SLUICE_KEY_SECRET"

const help = `Print the key as which applications count the value of a header, such as an API key: httplimit.HeaderKey, which grpclimit.Metadata
makes, too. Write it into keys, allow or deny of a file of policies; the value itself belongs into no file. With "-" the values
are read from stdin, one a line. An argument can be read by everybody on the host, and stays in the shell's history.

  throttlectl hash - < new-api-key.txt
  pass show acme | throttlectl hash - --header X-Api-Key --secret-file secret

If applications give Header a secret, give the same here, by --secret-file or in SLUICE_KEY_SECRET. Line ends after it are
left out. Values that can be guessed need one (docs/security.md).`

const leastSecret = 16 // bytes, as httplimit.HeaderKey has it

// New makes the hash command.
func New(f *cli.Factory) *cobra.Command {
	var header, secretFile string
	cmd := &cobra.Command{
		Use:   "hash KEY|-",
		Short: "Print the key as which a secret value, such as an API key, is counted",
		Long:  help,
		Args:  cli.Operands("KEY|-"),
		RunE: func(_ *cobra.Command, args []string) error {
			secret, err := readSecret(secretFile)
			if err != nil {
				return err
			}
			if header == "" || strings.ContainsAny(header, ": \t\r\n") {
				return cli.Usage(fmt.Errorf("--header = %q: must be the name of a header", header))
			}
			values := args
			if args[0] == "-" {
				values = nil
				if err := cli.EachKey(f.In, "-", func(value string) {
					values = append(values, strings.TrimSuffix(value, "\r"))
				}); err != nil {
					return err
				}
			}
			if len(values) == 0 || values[0] == "" {
				return errors.New("no value to hash")
			}
			for _, value := range values {
				if err := f.Print(hashed{httplimit.HeaderKey(header, value, secret)}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&header, "header", "X-Api-Key", "`name` of the header")
	cmd.Flags().StringVar(&secretFile, "secret-file", "", "`file` with the secret of the applications; without it, "+SecretEnv+" has it, if any")
	cli.NoFiles(cmd, "header")
	return cmd
}

// readSecret returns the secret, nil for none.
func readSecret(path string) ([]byte, error) {
	text, from := os.Getenv(SecretEnv), SecretEnv
	if path != "" {
		data, err := os.ReadFile(path) // which may be a pipe
		if err != nil {
			return nil, err
		}
		text, from = string(data), path
	} else if text == "" {
		return nil, nil
	}
	secret := strings.TrimRight(text, "\r\n")
	if len(secret) < leastSecret {
		return nil, cli.Usage(fmt.Errorf("%s: a secret of %d bytes: must have at least %d", from, len(secret), leastSecret))
	}
	return []byte(secret), nil
}

type hashed struct {
	Key string `json:"key"`
}

func (h hashed) Text(w io.Writer) { fmt.Fprintln(w, h.Key) }
