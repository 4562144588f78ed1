package main

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// limitEcho is the adapter for echo. Handlers return errors that become responses after all middleware, so it settles by the
// status that the error will have, which Wrap would not see.
func limitEcho(limited *httplimit.Middleware) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) (err error) {
			call := limited.Begin(c.Response().Header(), c.Request())
			if !call.Allowed() {
				call.Refuse(c.Response())
				return nil
			}
			c.SetRequest(call.Request())
			outcome := httplimit.Outcome{Panicked: true}
			defer func() {
				response, status := echo.ResolveResponseStatus(c.Response(), err)
				if response != nil {
					outcome.Written = response.Size
				}
				if !outcome.Panicked || response != nil && response.Committed { // otherwise a panic is a 500
					outcome.Status = status
				}
				call.Done(outcome)
			}()
			err = next(c)
			outcome.Panicked = false
			return err
		}
	}
}

func newEcho(limited *httplimit.Middleware) http.Handler {
	e := echo.New()
	e.Use(limitEcho(limited)) // or for a group: e.Group("/api", limitEcho(limited))
	hello := func(c *echo.Context) error { return c.String(http.StatusOK, "hello\n") }
	e.GET("/healthz", hello)
	e.GET("/hello", hello)
	e.GET("/page", func(c *echo.Context) error {
		const version = `"v1"`
		c.Response().Header().Set("ETag", version)
		if c.Request().Header.Get("If-None-Match") == version {
			return c.NoContent(http.StatusNotModified)
		}
		return c.String(http.StatusOK, "a page\n")
	})
	e.GET("/broken", func(*echo.Context) error {
		return echo.NewHTTPError(http.StatusServiceUnavailable, "the database is down")
	})
	return e
}
