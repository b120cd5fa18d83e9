package server

import (
	"io"
	"os"

	logsapi "k8s.io/component-base/logs/api/v1"
)

// logStreams are where the log goes. At verbosity 0, lines in text that only inform are left out.
func (s *Server) logStreams() *logsapi.LoggingOptions {
	if s.logging.Verbosity > 0 || s.logging.Format != logsapi.DefaultLogFormat {
		return &logsapi.LoggingOptions{ErrorStream: os.Stderr, InfoStream: os.Stdout}
	}
	return &logsapi.LoggingOptions{ErrorStream: withoutInfo{os.Stderr},
		InfoStream: withoutInfo{os.Stdout}}
}

// withoutInfo drops what klog writes as INFO. Each write is a whole message, which begins with the
// first letter of its severity.
type withoutInfo struct{ io.Writer }

func (w withoutInfo) Write(message []byte) (int, error) {
	if len(message) > 0 && message[0] == 'I' {
		return len(message), nil
	}
	return w.Writer.Write(message)
}
