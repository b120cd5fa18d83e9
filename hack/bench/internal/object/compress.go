package object

import (
	"context"
	"fmt"

	"github.com/klauspost/compress/zstd"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// Transformer is what values go through before they are stored.
func Transformer() value.Transformer {
	if !used.Compressed {
		return identity.NewEncryptCheckTransformer()
	}
	out, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	utilruntime.Must(err)
	in, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0))
	utilruntime.Must(err)
	return compressor{out, in}
}

type compressor struct {
	out *zstd.Encoder
	in  *zstd.Decoder
}

func (c compressor) TransformToStorage(_ context.Context, data []byte,
	_ value.Context) ([]byte, error) {
	return c.out.EncodeAll(data, nil), nil
}

func (c compressor) TransformFromStorage(_ context.Context, data []byte,
	_ value.Context) ([]byte, bool, error) {
	plain, err := c.in.DecodeAll(data, nil)
	if err != nil {
		return nil, false, fmt.Errorf("a value is not compressed: %w", err)
	}
	return plain, false, nil
}
