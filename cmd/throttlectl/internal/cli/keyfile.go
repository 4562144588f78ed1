package cli

import (
	"bufio"
	"io"
	"os"
)

// EachKey calls f with each line of a file that isn't empty; "-" is stdin.
func EachKey(stdin io.Reader, path string, f func(key string)) error {
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		stdin = file
	}
	lines := bufio.NewScanner(stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if key := lines.Text(); key != "" {
			f(key)
		}
	}
	return lines.Err()
}
