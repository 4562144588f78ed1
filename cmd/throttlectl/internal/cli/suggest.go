package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const mostSuggestions = 3

// didYouMean asks whether a user meant one of those known by a word; each gets a prefix. It is empty if none is like the word.
func didYouMean(word, prefix string, known []string) string {
	guess := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range known {
		if len(name) > 2 && !strings.ContainsAny(name, " \t") { // of shorter ones all are alike
			guess.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
		}
	}
	like := guess.SuggestionsFor(word)
	if len(like) == 0 {
		return ""
	}
	like = like[:min(mostSuggestions, len(like))]
	for i := range like {
		like[i] = prefix + like[i]
	}
	return "did you mean " + strings.Join(like, " or ") + "?"
}

// FlagError adds to an error about an unknown flag those that it is like.
func FlagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	see := "see " + cmd.CommandPath() + " --help"
	if guess := didYouMean(unknown.GetSpecifiedName(), "--", names); guess != "" {
		return fmt.Errorf("%w: %s (%s)", err, guess, see)
	}
	return fmt.Errorf("%w (%s)", err, see)
}

// OneOf is the error of a flag whose value is none of those known, nil if it is one.
func OneOf(flag, value string, known []string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return WithGuess(fmt.Errorf("--%s = %q: must be one of %s", flag, value, strings.Join(known, ", ")), value, known)
}

// WithGuess adds to an error about an unknown name those that it is like.
func WithGuess(err error, name string, known []string) error {
	if guess := didYouMean(name, "", known); guess != "" {
		return fmt.Errorf("%w; %s", err, guess)
	}
	return err
}
