// Package sdktest holds the tests of package otelthrottle against the SDK of OpenTelemetry, which is not among the modules
// that the users of package otelthrottle get.
package sdktest
