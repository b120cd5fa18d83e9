module github.com/rowkeeper/rowkeeper/pkg/testkit/process

go 1.24.0
