package main

import (
	"context"
	"os"
	"strings"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// executor runs a step, and returns the lines that it has written and its exit code.
type executor func(ctx context.Context, step *v1.Step, env map[string]string) (lines []string,
	exitCode int32)

// simulate only says what it would do. It knows echo, which says something, and false, which fails.
func simulate(_ context.Context, step *v1.Step, env map[string]string) ([]string, int32) {
	command := step.Command
	if len(command) == 0 {
		command = []string{"sh", "-c", step.Shell}
	}
	if len(command) == 3 && command[0] == "sh" {
		command = strings.Fields(command[2])
	}
	lines := []string{"+ " + strings.Join(command, " ")}
	switch {
	case len(command) > 0 && command[0] == "echo":
		words := make([]string, len(command)-1)
		for i, word := range command[1:] {
			words[i] = os.Expand(word, func(name string) string { return env[name] })
		}
		return append(lines, strings.Join(words, " ")), 0
	case len(command) > 0 && command[0] == "false":
		return lines, 1
	}
	return lines, 0
}
