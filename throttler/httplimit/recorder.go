package httplimit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
)

// recorder records what a handler answers, if Settle needs the outcome.
//
// A handler may find out by a type assertion what its ResponseWriter can do, so the recorder must not offer more than the
// wrapped one: shaped adds Flusher, Hijacker and Pusher if it has them. http.ResponseController uses Unwrap.
type recorder struct {
	http.ResponseWriter
	status   int // 0 before the header is written
	written  int64
	hijacked bool
}

// The combinations that net/http's own writers have, and flushing alone.
type (
	flushRecorder struct{ *recorder }
	http1Recorder struct{ flushRecorder }
	http2Recorder struct {
		flushRecorder
		http.Pusher
	}
)

func (r *recorder) shaped() http.ResponseWriter {
	if _, ok := r.ResponseWriter.(http.Flusher); !ok {
		return r
	}
	flush := flushRecorder{r}
	if _, ok := r.ResponseWriter.(http.Hijacker); ok {
		return http1Recorder{flush}
	}
	if pusher, ok := r.ResponseWriter.(http.Pusher); ok {
		return http2Recorder{flush, pusher}
	}
	return flush
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return unwrapped{http1Recorder{flushRecorder{r}}} }

// unwrapped lets a http.ResponseController flush and hijack a writer that offers this by Unwrap only, and records it.
type unwrapped struct{ http1Recorder }

func (u unwrapped) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols { // others precede the final header
		r.header(status)
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.header(http.StatusOK)
	n, err := r.ResponseWriter.Write(p)
	r.written += int64(n)
	return n, err
}

// WriteString avoids the copy of Write.
func (r *recorder) WriteString(s string) (int, error) {
	r.header(http.StatusOK)
	n, err := io.WriteString(r.ResponseWriter, s)
	r.written += int64(n)
	return n, err
}

// ReadFrom keeps sendfile: io.Copy uses the ReadFrom of the wrapped writer. As in net/http the response begins with the first
// byte of src: after a src that fails or is empty the handler may still choose a status.
func (r *recorder) ReadFrom(src io.Reader) (n int64, err error) {
	if r.status == 0 {
		first := io.LimitedReader{R: src, N: 512}
		if n, err = io.Copy(writerOnly{r}, &first); err != nil || first.N > 0 {
			return n, err
		}
	}
	rest, err := io.Copy(r.ResponseWriter, src)
	r.written += rest
	return n + rest, err
}

// writerOnly hides ReadFrom from io.Copy.
type writerOnly struct{ io.Writer }

func (r flushRecorder) Flush() { _ = r.FlushError() }

// FlushError is for http.ResponseController, which prefers it to Flush.
func (r flushRecorder) FlushError() error {
	err := http.NewResponseController(r.ResponseWriter).Flush()
	if !errors.Is(err, http.ErrNotSupported) {
		r.header(http.StatusOK)
	}
	return err
}

func (r http1Recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(r.ResponseWriter).Hijack()
	r.hijacked = r.hijacked || err == nil
	return conn, buffer, err
}

// header records the first status; net/http ignores later ones.
func (r *recorder) header(status int) {
	if r.status == 0 && !r.hijacked {
		r.status = status
	}
}

func (r *recorder) outcome(panicked bool) Outcome {
	return Outcome{Status: r.status, Written: r.written, Panicked: panicked, Hijacked: r.hijacked}
}
