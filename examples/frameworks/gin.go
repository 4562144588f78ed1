package main

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// limitGin is the adapter for gin. It settles by the status that gin has when the handlers have returned.
func limitGin(limited *httplimit.Middleware) gin.HandlerFunc {
	return func(c *gin.Context) {
		call := limited.Begin(c.Writer.Header(), c.Request)
		if !call.Allowed() {
			call.Refuse(c.Writer)
			c.Abort()
			return
		}
		c.Request = call.Request()
		outcome := httplimit.Outcome{Panicked: true}
		defer func() {
			if !outcome.Panicked || c.Writer.Written() { // otherwise a panic is a 500
				outcome.Status, outcome.Written = c.Writer.Status(), int64(max(0, c.Writer.Size()))
			}
			call.Done(outcome)
		}()
		c.Next()
		outcome.Panicked = false
	}
}

func newGin(limited *httplimit.Middleware) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery(), limitGin(limited)) // or for a group: r.Group("/api", limitGin(limited))
	hello := func(c *gin.Context) { c.String(http.StatusOK, "hello\n") }
	r.GET("/healthz", hello)
	r.GET("/hello", hello)
	r.GET("/page", func(c *gin.Context) {
		const version = `"v1"`
		c.Header("ETag", version)
		if c.GetHeader("If-None-Match") == version {
			c.Status(http.StatusNotModified)
			return
		}
		c.String(http.StatusOK, "a page\n")
	})
	r.GET("/broken", func(c *gin.Context) {
		_ = c.AbortWithError(http.StatusServiceUnavailable, errors.New("the database is down"))
	})
	return r
}
