package process

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort finds a TCP port that is free on 127.0.0.1, outside the range from which the system
// takes ports for outgoing connections, so that a program can be stopped and started again on it.
func FreePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port between 20000 and 32000 is free on 127.0.0.1")
}
