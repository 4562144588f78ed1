package httplimit_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// Without Settle nothing stands between the handler and its ResponseWriter; nor for a request that is denied.
func TestNotWrappedWithoutNeed(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(2))})
	var got http.ResponseWriter
	keep := func(w http.ResponseWriter, _ *http.Request) { got = w }
	for _, cfg := range []httplimit.Config{
		{}, {Settle: httplimit.GiveBack(0)}, {Settle: httplimit.GiveBack(0), Denied: http.HandlerFunc(keep)},
	} {
		w := httptest.NewRecorder()
		wrap(t, th, cfg, keep).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if wrapped := got != w; wrapped != (cfg.Settle != nil && cfg.Denied == nil) {
			t.Errorf("wrapped = %v", wrapped)
		}
		if wrapped := cfg.Settle != nil && cfg.Denied == nil; wrapped && unwrap(unwrap(got)) != w {
			t.Error("Unwrap doesn't lead to the writer below")
		}
	}
}

func unwrap(w http.ResponseWriter) http.ResponseWriter {
	return w.(interface{ Unwrap() http.ResponseWriter }).Unwrap()
}

// The writer that a handler gets can do what the one below can, and claims no more.
func TestWriterKeepsItsShape(t *testing.T) {
	t.Parallel()
	shape := func(w http.ResponseWriter) string {
		_, flush := w.(http.Flusher)
		_, hijack := w.(http.Hijacker)
		_, push := w.(http.Pusher)
		return fmt.Sprintf("flush %v, hijack %v, push %v", flush, hijack, push)
	}
	var below, got string
	h, _, _ := settling(t, httplimit.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		got = shape(w)
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("no io.ReaderFrom")
		}
		controller := http.NewResponseController(w)
		if err := controller.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("SetWriteDeadline: %v", err)
		}
	})
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		below = shape(w)
		h.ServeHTTP(w, r)
	})
	for _, http2 := range []bool{false, true} {
		s := httptest.NewUnstartedServer(outer)
		s.EnableHTTP2 = http2
		if http2 {
			s.StartTLS()
		} else {
			s.Start()
		}
		response, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if want := map[bool]int{false: 1, true: 2}[http2]; response.ProtoMajor != want {
			t.Errorf("HTTP/%d, want %d", response.ProtoMajor, want)
		}
		s.Close()
		if got != below || got == "" {
			t.Errorf("HTTP/2 %v: %s, below: %s", http2, got, below)
		}
	}

	for name, w := range map[string]http.ResponseWriter{
		"recorder": httptest.NewRecorder(), "nothing": struct{ http.ResponseWriter }{httptest.NewRecorder()},
	} {
		h, _, _ := settling(t, httplimit.Config{}, func(w http.ResponseWriter, _ *http.Request) { got = shape(w) })
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if want := shape(w); got != want {
			t.Errorf("%s: %s, below: %s", name, got, want)
		}
	}
}

// A flushed part reaches the client while the handler still runs.
func TestStreaming(t *testing.T) {
	t.Parallel()
	for name, flush := range map[string]func(http.ResponseWriter) error{
		"Flusher": func(w http.ResponseWriter) error {
			w.(http.Flusher).Flush()
			return nil
		},
		"controller": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := make(chan struct{})
			h, _, _ := settling(t, httplimit.Config{}, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "first\n")
				if err := flush(w); err != nil {
					t.Error(err)
				}
				<-read
				_, _ = io.WriteString(w, "second\n")
			})
			s := server(t, h)
			response, err := s.Client().Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body := bufio.NewReader(response.Body)
			if line, err := body.ReadString('\n'); err != nil || line != "first\n" {
				t.Errorf("%q, %v", line, err)
			}
			close(read)
			if rest, err := io.ReadAll(body); err != nil || string(rest) != "second\n" {
				t.Errorf("%q, %v", rest, err)
			}
		})
	}
}

// A handler may take the connection over, and settles when it returns.
func TestHijack(t *testing.T) {
	t.Parallel()
	direct := func(w http.ResponseWriter) error { return upgrade(w.(http.Hijacker).Hijack()) }
	control := func(w http.ResponseWriter) error { return upgrade(http.NewResponseController(w).Hijack()) }
	for name, test := range map[string]struct {
		hijack func(http.ResponseWriter) error
		below  func(http.ResponseWriter) http.ResponseWriter // what another middleware makes of a writer
	}{
		"Hijacker":                {direct, func(w http.ResponseWriter) http.ResponseWriter { return w }},
		"controller":              {control, func(w http.ResponseWriter) http.ResponseWriter { return w }},
		"controller, Unwrap only": {control, func(w http.ResponseWriter) http.ResponseWriter { return unwrapOnly{w} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settled := make(chan httplimit.Outcome, 1)
			h, _, _ := settling(t, httplimit.Config{Settle: func(_ *http.Request, o httplimit.Outcome) int64 {
				settled <- o
				return 0
			}}, func(w http.ResponseWriter, _ *http.Request) {
				if err := test.hijack(w); err != nil {
					t.Error(err)
				}
			})
			s := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(test.below(w), r) }))
			response, err := s.Client().Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(response.Body); err != nil || string(rest) != "taken" {
				t.Errorf("%q, %v", rest, err)
			}
			_ = response.Body.Close()
			if got, want := <-settled, (httplimit.Outcome{Cost: 5, Hijacked: true}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// unwrapOnly is what many middlewares make of a writer.
type unwrapOnly struct{ http.ResponseWriter }

func (w unwrapOnly) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// What a http.ResponseController can't do below is an error, and no answer.
func TestFlushThatFails(t *testing.T) {
	t.Parallel()
	h, _, outcome := settling(t, httplimit.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Error(err)
		}
		w.WriteHeader(404)
	})
	h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/", nil))
	if outcome.Status != 404 {
		t.Errorf("%+v", *outcome)
	}
}

func upgrade(conn io.WriteCloser, _ *bufio.ReadWriter, err error) error {
	if err != nil {
		return err
	}
	_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ntaken")
	return errors.Join(err, conn.Close())
}

// Hijacking fails as it would below: the handler can still answer.
func TestHijackThatFails(t *testing.T) {
	t.Parallel()
	h, _, outcome := settling(t, httplimit.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); err == nil {
			t.Error("Hijack worked")
		}
		w.WriteHeader(404)
	})
	h.ServeHTTP(noHijack{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/", nil))
	if outcome.Hijacked || outcome.Status != 404 {
		t.Errorf("%+v", *outcome)
	}
}

type noHijack struct{ *httptest.ResponseRecorder }

func (noHijack) Hijack() (c net.Conn, b *bufio.ReadWriter, err error) { return nil, nil, errBoom }

// A file goes out whole, by the writer's own ReadFrom.
func TestServeFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file.txt")
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	var readFrom atomic.Int64
	done := make(chan httplimit.Outcome, 1)
	h, _, _ := settling(t, httplimit.Config{Settle: func(_ *http.Request, o httplimit.Outcome) int64 {
		done <- o
		return o.Cost
	}}, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) })
	s := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&countReadFrom{w, &readFrom}, r)
	}))
	response, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if got, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if o := <-done; o.Written != int64(len(content)) || o.Status != 200 {
		t.Errorf("%+v", o)
	}
	if readFrom.Load() == 0 {
		t.Error("the writer's ReadFrom was passed by")
	}
}

type countReadFrom struct {
	http.ResponseWriter
	calls *atomic.Int64
}

func (w *countReadFrom) ReadFrom(r io.Reader) (int64, error) {
	w.calls.Add(1)
	return w.ResponseWriter.(io.ReaderFrom).ReadFrom(r)
}

// HEAD of a denial has the headers of a GET and no body.
func TestHead(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	s := server(t, wrap(t, th, httplimit.Config{}, ok))
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		response, err := s.Client().Head(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want || response.Header.Get("RateLimit") == "" {
			t.Errorf("%d, %v, want %d", response.StatusCode, response.Header, want)
		}
		if want == http.StatusTooManyRequests && (response.ContentLength < 100 || response.Header.Get("Retry-After") == "") {
			t.Errorf("%v, want the headers that a GET has", response.Header)
		}
	}
}
