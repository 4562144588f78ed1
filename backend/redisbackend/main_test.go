package redisbackend_test

import (
	"os"
	"testing"

	"github.com/sluice-go/sluice/internal/backendtesting"
)

func TestMain(m *testing.M) { os.Exit(backendtesting.Main(m)) }
