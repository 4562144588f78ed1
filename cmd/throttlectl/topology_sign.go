package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/router"
)

const keygenHelp = `Make a key for signing topologies. The private key is written to FILE, which must not be there yet, readable by its owner
only; the public key, for router.Config.TopologyKeys (router.ParseTopologyKeys reads it), is printed. Use a key of its own for
each set of applications: a topology that is signed for one is good for all that have its key.`

func newTopologyKeygen(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "keygen FILE",
		Short: "Make a key for signing topologies",
		Long:  keygenHelp,
		Args:  operands("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			public, private, err := ed25519.GenerateKey(nil)
			if err != nil {
				return err
			}
			secret, err := x509.MarshalPKCS8PrivateKey(private)
			if err != nil {
				return err
			}
			open, err := x509.MarshalPKIXPublicKey(public)
			if err != nil {
				return err
			}
			file, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			err = pem.Encode(file, &pem.Block{Type: "PRIVATE KEY", Bytes: secret})
			if err = errors.Join(err, file.Close()); err != nil {
				return err
			}
			return pem.Encode(cmd.OutOrStdout(), &pem.Block{Type: "PUBLIC KEY", Bytes: open})
		},
	}
}

const signHelp = `Print a topology with a signature over all that it says: its epoch, groups, addresses and "previous". How the file is laid
out doesn't matter. Publish what is printed (throttlectl topology push), and have processes start with it, too: they hand it
on to servers that have lost it.`

func newTopologySign(g *globals) *cobra.Command {
	var keyFile string
	cmd := &cobra.Command{
		Use:               "sign FILE",
		Short:             "Print a topology with a signature",
		Long:              signHelp,
		Args:              operands("FILE"),
		ValidArgsFunction: jsonFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if keyFile == "" {
				return usage(errors.New("--key-file is needed: the private key that throttlectl topology keygen made"))
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			return err
		},
	}
	cmd.Flags().StringVar(&keyFile, "key-file", "", "`file` with the private key, PEM")
	return cmd
}

// signingKey reads a private key as keygen and openssl write it.
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
