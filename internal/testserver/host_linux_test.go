package testserver_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/testserver"
)

// TestDiesWithTheBinary kills a test binary that has a server, as a timeout in CI would, and waits for the server to go.
func TestDiesWithTheBinary(t *testing.T) {
	const child = "SLUICE_TESTSERVER_CHILD"
	if os.Getenv(child) != "" {
		fmt.Println(testserver.Redis(t).Addr)
		select {}
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiesWithTheBinary$")
	cmd.Env = append(os.Environ(), child+"=1", "TMPDIR="+t.TempDir()) // it can't remove its own
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	addr := strings.TrimSpace(line)
	if err == nil {
		_, err = net.Dial("tcp", addr)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatalf("server of the other binary: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := net.Dial("tcp", addr); errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server on %s outlives the binary that started it", addr)
		}
	}
}
