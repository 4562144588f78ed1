package topology

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/router"
)

const keygenHelp = `Make a key for signing topologies. The private key is written to FILE, readable by its owner only, and the public key, for
router.Config.TopologyKeys (router.ParseTopologyKeys reads it), to FILE.pub; neither may be there yet. Use a key of its own for
each set of applications: a topology that is signed for one is good for all that have its key. "openssl pkey -in FILE -pubout"
prints the public key of a private one.`

func newKeygen(f *cli.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "keygen FILE",
		Short: "Make a key for signing topologies",
		Long:  keygenHelp,
		Args:  cli.Operands("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, private, err := ed25519.GenerateKey(nil)
			if err != nil {
				return err
			}
			secret, err := x509.MarshalPKCS8PrivateKey(private)
			if err != nil {
				return err
			}
			open, err := x509.MarshalPKIXPublicKey(key)
			if err != nil {
				return err
			}
			public := args[0] + ".pub"
			if err := writeNew(public, 0o644, &pem.Block{Type: "PUBLIC KEY", Bytes: open}); err != nil {
				return err
			}
			if err := writeNew(args[0], 0o600, &pem.Block{Type: "PRIVATE KEY", Bytes: secret}); err != nil {
				return errors.Join(err, os.Remove(public))
			}
			_, err = fmt.Fprintf(f.Out, "%s: for who signs\n%s: for the processes\n", args[0], public)
			return err
		},
	}
}

// writeNew writes a file that must not exist.
func writeNew(path string, mode os.FileMode, block *pem.Block) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	return errors.Join(pem.Encode(file, block), file.Close())
}

const signHelp = `Print a topology with a signature over all that it says: its epoch, groups, addresses and "previous". How the file is laid
out doesn't matter. Publish what is printed (throttlectl topology push), and have processes start with it, too: they hand it
on to servers that have lost it.`

func newSign(f *cli.Factory) *cobra.Command {
	var keyFile string
	cmd := &cobra.Command{
		Use:               "sign FILE",
		Short:             "Print a topology with a signature",
		Long:              signHelp,
		Args:              cli.Operands("FILE"),
		ValidArgsFunction: cli.DocumentFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if keyFile == "" {
				return cli.Usage(errors.New("--key-file is needed: the private key that throttlectl topology keygen made"))
			}
			key, err := signingKey(keyFile)
			if err != nil {
				return err
			}
			t, err := router.LoadTopology(args[0])
			if err != nil {
				return err
			}
			if t, err = t.Sign(key); err != nil {
				return err
			}
			if err := t.CheckHistory(); err != nil {
				return err
			}
			text, err := json.MarshalIndent(t, "", "  ")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(f.Out, "%s\n", text)
			return err
		},
	}
	cmd.Flags().StringVar(&keyFile, "key-file", "", "`file` with the private key, PEM")
	return cmd
}

// signingKey reads a private key as topology keygen and openssl write it.
func signingKey(path string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("--key-file: %s is no PEM", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.Join(fmt.Errorf("--key-file: %s has no private key of Ed25519", path), err)
	}
	return key, nil
}
