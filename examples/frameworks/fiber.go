package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// limitFiber is the adapter for fiber, which has no *http.Request. Fiber's own adaptor would not do: it keeps one line of each
// header field, and its strings change when the next request reuses their memory, while keys are kept.
func limitFiber(limited *httplimit.Middleware) fiber.Handler {
	return func(c fiber.Ctx) (err error) {
		r, err := convert(c)
		if err != nil {
			return fiber.ErrBadRequest
		}
		header := http.Header{}
		call := limited.Begin(header, r)
		if !call.Allowed() {
			status, body := call.Problem(header)
			addHeader(c, header)
			return c.Status(status).Send(body)
		}
		addHeader(c, header)
		c.SetContext(call.Request().Context())
		outcome := httplimit.Outcome{Panicked: true}
		defer func() {
			failed, ok := errors.AsType[*fiber.Error](err)
			switch {
			case ok: // the ErrorHandler writes it later
				outcome.Status = failed.Code
			case err == nil && !outcome.Panicked:
				outcome.Status = c.Response().StatusCode()
			default: // fiber sends nothing before the handlers have returned
				outcome.Status = http.StatusInternalServerError
			}
			call.Done(outcome)
		}()
		err = c.Next()
		outcome.Panicked = false
		return err
	}
}

// convert copies what KeyFuncs and routes read.
func convert(c fiber.Ctx) (*http.Request, error) {
	target, err := url.ParseRequestURI(string(c.Request().RequestURI()))
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	for name, value := range c.Request().Header.All() {
		header.Add(string(name), string(value))
	}
	r := &http.Request{
		Method: strings.Clone(c.Method()), URL: target, Host: string(c.Request().Host()), Header: header,
		RemoteAddr: c.RequestCtx().RemoteAddr().String(),
	}
	return r.WithContext(c.Context()), nil
}

func addHeader(c fiber.Ctx, header http.Header) {
	for name, values := range header {
		for _, value := range values {
			c.Response().Header.Add(name, value)
		}
	}
}

func newFiber(limited *httplimit.Middleware) *fiber.App {
	app := fiber.New()
	app.Use(limitFiber(limited)) // or for a group: app.Group("/api", limitFiber(limited))
	hello := func(c fiber.Ctx) error { return c.SendString("hello\n") }
	app.Get("/healthz", hello)
	app.Get("/hello", hello)
	app.Get("/page", func(c fiber.Ctx) error {
		const version = `"v1"`
		c.Set("ETag", version)
		if c.Get("If-None-Match") == version {
			return c.SendStatus(http.StatusNotModified)
		}
		return c.SendString("a page\n")
	})
	app.Get("/broken", func(fiber.Ctx) error {
		return fiber.NewError(http.StatusServiceUnavailable, "the database is down")
	})
	return app
}

// fiberServer is a fiber.App with the methods of an http.Server.
type fiberServer struct{ *fiber.App }

func (s fiberServer) Serve(l net.Listener) error {
	return s.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
}

func (s fiberServer) Shutdown(ctx context.Context) error { return s.ShutdownWithContext(ctx) }
