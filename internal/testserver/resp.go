//go:build unix

package testserver

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readRequest reads one command: an array of bulk strings or an inline command. It returns the bytes as they came and
// the arguments, the command's name in upper case; no arguments for an empty line.
func readRequest(r *bufio.Reader) (raw []byte, args []string, err error) {
	var frame bytes.Buffer
	head, err := copyLine(&frame, r)
	if err != nil {
		return nil, nil, err
	}
	if !strings.HasPrefix(head, "*") {
		args = strings.Fields(head)
	} else {
		n, err := count(head)
		if err != nil {
			return nil, nil, err
		}
		for range n {
			if head, err = copyLine(&frame, r); err != nil {
				return nil, nil, err
			}
			size, err := count(head)
			if err != nil || head[0] != '$' || size < 0 {
				return nil, nil, fmt.Errorf("resp: argument %.20q", head)
			}
			start := frame.Len()
			if err := copyBulk(&frame, r, size); err != nil {
				return nil, nil, err
			}
			args = append(args, string(frame.Bytes()[start:start+size]))
		}
	}
	if len(args) > 0 {
		args[0] = strings.ToUpper(args[0])
	}
	return frame.Bytes(), args, nil
}

// readReply reads one whole value of RESP2 or RESP3, nested ones included, and returns its bytes as they came. A bare
// line end, which a primary sends to keep a link alive, is a value too.
func readReply(r *bufio.Reader) ([]byte, error) {
	var frame bytes.Buffer
	err := copyValue(&frame, r)
	return frame.Bytes(), err
}

func copyValue(frame *bytes.Buffer, r *bufio.Reader) error {
	head, err := copyLine(frame, r)
	if err != nil || head == "" {
		return err
	}
	var values int
	switch head[0] {
	case '+', '-', ':', '_', '#', ',', '(': // string, error, integer, null, bool, double, big number
		return nil
	case '$', '!', '=': // bulk string, bulk error, verbatim string
		size, err := count(head)
		if err != nil || size < 0 {
			return err
		}
		return copyBulk(frame, r, size)
	case '*', '~', '>': // array, set, push
		values, err = count(head)
	case '%': // map
		values, err = count(head)
		values *= 2
	case '|': // attributes of the value that follows them
		values, err = count(head)
		values = values*2 + 1
	default:
		err = fmt.Errorf("resp: value %.20q", head)
	}
	for range values {
		if err != nil {
			return err
		}
		err = copyValue(frame, r)
	}
	return err
}

// copyLine copies one line to frame and returns it without its end.
func copyLine(frame *bytes.Buffer, r *bufio.Reader) (string, error) {
	line, err := r.ReadBytes('\n')
	frame.Write(line)
	return string(bytes.TrimRight(line, "\r\n")), err
}

// copyBulk copies size bytes and the line end after them.
func copyBulk(frame *bytes.Buffer, r *bufio.Reader, size int) error {
	_, err := io.CopyN(frame, r, int64(size)+2)
	return err
}

// count returns the number in a header like "*3"; -1 stands for null.
func count(head string) (int, error) {
	n, err := strconv.Atoi(head[min(1, len(head)):])
	if err != nil || n < -1 || n > 512<<20 { // the largest value of Redis
		return 0, fmt.Errorf("resp: header %.20q", head)
	}
	return n, nil
}
