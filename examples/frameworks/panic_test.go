package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	recoverfiber "github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/labstack/echo/v5"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// A panic before anything is sent is a 500, whatever status the framework had by then.
func TestPanics(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*httplimit.Middleware, *http.Request) (int, error){
		"gin": func(limited *httplimit.Middleware, r *http.Request) (int, error) {
			gin.SetMode(gin.ReleaseMode)
			g := gin.New()
			g.Use(gin.RecoveryWithWriter(io.Discard), limitGin(limited))
			g.GET("/", func(*gin.Context) { panic("boom") })
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			return w.Code, nil
		},
		"echo": func(limited *httplimit.Middleware, r *http.Request) (int, error) {
			e := echo.New()
			recovers := func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c *echo.Context) (err error) {
					defer func() {
						if recover() != nil {
							err = echo.ErrInternalServerError
						}
					}()
					return next(c)
				}
			}
			e.Use(recovers, limitEcho(limited))
			e.GET("/", func(*echo.Context) error { panic("boom") })
			w := httptest.NewRecorder()
			e.ServeHTTP(w, r)
			return w.Code, nil
		},
		"fiber": func(limited *httplimit.Middleware, r *http.Request) (int, error) {
			app := fiber.New()
			app.Use(recoverfiber.New(), limitFiber(limited))
			app.Get("/", func(fiber.Ctx) error { panic("boom") })
			response, err := app.Test(r)
			if err != nil {
				return 0, err
			}
			return response.StatusCode, response.Body.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			th, err := newThrottler()
			if err != nil {
				t.Fatal(err)
			}
			defer th.Close()
			var got httplimit.Outcome
			limited, err := httplimit.New(th, httplimit.Config{
				Key:    func(*http.Request) (string, error) { return "key", nil },
				Settle: func(_ *http.Request, o httplimit.Outcome) int64 { got = o; return o.Cost },
			})
			if err != nil {
				t.Fatal(err)
			}
			status, err := serve(limited, httptest.NewRequest(http.MethodGet, "/", nil))
			if want := (httplimit.Outcome{Status: 500, Cost: 1, Panicked: true}); err != nil || status != 500 || got != want {
				t.Errorf("status %d, %v, settled by %+v", status, err, got)
			}
		})
	}
}
