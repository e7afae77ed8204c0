"""The Files API of the fake Gemini API: resumable uploads, downloads of results, and what is known of a file."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing.google_batches import FakeGoogleBatch
from pydantic_ai_batch.testing.google_files import FakeFile, FileStore, Upload, id_problem, new_id
from pydantic_ai_batch.testing.google_json import field, object_in
from pydantic_ai_batch.testing.google_service import VERSIONS, GoogleService
from pydantic_ai_batch.testing.provider import Handler, Incoming
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.wire import Download, json_reply


class GoogleFiles(GoogleService[FakeGoogleBatch]):
    """The fake Gemini API as far as it is about files."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.max_file_bytes = 2_000_000_000
        """Largest file, in bytes."""
        self._files = FileStore()
        self._uploads: dict[str, Upload] = {}

    @property
    def file_routes(self) -> list[Route]:
        """The paths that are about files."""
        routes = [self.route('POST', '/upload/session/{upload}', 'upload_bytes', self._upload_bytes)]
        for version in VERSIONS:
            file = version + '/files/{id}'
            routes += [
                self.route('POST', f'/upload{version}/files', 'upload', self._upload),
                self.route('GET', f'{version}/files', 'files', self._list_files),
                # The documentation has the first of these, the SDK the second.
                self.route('GET', f'/download{file}:download', 'download', self._download),
                self.route('GET', f'{file}:download', 'download', self._download),
                self.route('GET', file, 'file', self._show_file),
                self.route('DELETE', file, 'delete_file', self._delete_file),
            ]
        return routes

    def _respond(self, operation: str, handler: Handler, incoming: Incoming) -> Response:
        response = super()._respond(operation, handler, incoming)
        if operation == 'upload_bytes':
            # An error ends an upload. Of a reply that does not say so the SDK thinks that it comes from something in
            # between, and sends the same bytes again after real seconds of sleep.
            response.headers.setdefault('x-goog-upload-status', 'final')
        return response

    def _upload(self, call: Incoming) -> Response:
        """Begin a resumable upload."""
        project = self._project(call)
        if call.headers.get('x-goog-upload-command') != 'start':
            self._refuse(400, 'Only resumable uploads are understood: the first call has the upload command `start`.')
        file = object_in(self._json(call), 'file') if call.body else {}
        name = field(file, 'name')
        id = new_id(12) if name is None else str(name).removeprefix('files/')
        if problem := id_problem(id):
            self._refuse(400, problem)
        if self._files.get(id, project, self._now):
            self._refuse(409, f'There is a file {id!r} already.', code='ALREADY_EXISTS')
        announced = call.headers.get('x-goog-upload-header-content-length', '')
        upload = Upload(
            project=project,
            file_id=id,
            display_name=field(file, 'displayName'),
            mime_type=call.headers.get('x-goog-upload-header-content-type') or field(file, 'mimeType') or '',
            announced=int(announced) if announced.isdecimal() else None,
        )
        if (upload.announced or 0) > self.max_file_bytes:
            self._refuse(400, f'A file has at most {self.max_file_bytes} bytes.')
        session = new_id(40)
        self._uploads[session] = upload
        reply = Response()
        reply.headers['x-goog-upload-status'] = 'active'
        reply.headers['x-goog-upload-url'] = f'{self.base_url}/upload/session/{session}'
        return reply

    def _upload_bytes(self, call: Incoming) -> Response:
        """Take a piece of an upload; who has the URL needs no key."""
        upload = self._uploads.get(call.path['upload'])
        if upload is None:
            self._refuse(404, 'There is no such upload, or it is finished.')
        commands = {command.strip() for command in call.headers.get('x-goog-upload-command', '').split(',')}
        if 'query' in commands:
            return _upload_reply(Response(), 'active', len(upload.received))
        if 'upload' in commands:
            if call.headers.get('x-goog-upload-offset') != str(len(upload.received)):
                self._refuse(400, f'{len(upload.received)} bytes were received, and the upload goes on from there.')
            upload.received += call.body
        if 'finalize' not in commands:
            return _upload_reply(Response(), 'active', len(upload.received))
        if upload.announced not in (None, len(upload.received)):
            self._refuse(400, f'{upload.announced} bytes were announced, and {len(upload.received)} received.')
        del self._uploads[call.path['upload']]
        file = FakeFile(
            id=upload.file_id,
            project=upload.project,
            display_name=upload.display_name,
            mime_type=upload.mime_type,
            content=bytes(upload.received),
            created_at=self._now,
            generated=False,
        )
        self._files.add(file)
        return _upload_reply(json_reply({'file': file.to_json(self.base_url)}), 'final', len(file.content))

    def _list_files(self, call: Incoming) -> Response:
        project = self._project(call)
        for batch in self._batches.values():
            self.catch_up(batch)
        files, token = self._page(call, self._files.of(project, self._now)[::-1], most=100, default=10)
        page = {'files': [file.to_json(self.base_url) for file in files], 'nextPageToken': token}
        return json_reply({name: value for name, value in page.items() if value})

    def _show_file(self, call: Incoming) -> Response:
        return json_reply(self._file(call).to_json(self.base_url))

    def _file(self, call: Incoming) -> FakeFile:
        """The file that is asked for. As reported, an id that is too long is refused even if there is such a file."""
        project, id = self._project(call), call.path['id']
        if problem := id_problem(id):
            self._refuse(400, problem)
        file = self._files.get(id, project, self._now)
        if file is None:
            # Google does not tell others' files from those that are not there.
            self._refuse(403, f'There is no file {id!r}, or it is not for this key.')
        return file

    def _download(self, call: Incoming) -> Response:
        project, id = self._project(call), call.path['id']
        for batch in self._batches.values():
            self.catch_up(batch)
        file = self._files.get(id, project, self._now)
        if file is None:
            self._refuse(404, f'There is no file {id!r}.')
        if not file.generated:
            self._refuse(400, 'A file that was uploaded cannot be downloaded.')
        if call.query.get('alt') != 'media':
            return json_reply({})
        return Download(file.content, filename=f'{file.id}.jsonl')

    def _delete_file(self, call: Incoming) -> Response:
        self._files.delete(self._file(call))
        return json_reply({})


def _upload_reply(reply: Response, status: str, received: int) -> Response:
    reply.headers['x-goog-upload-status'] = status
    reply.headers['x-goog-upload-size-received'] = str(received)
    return reply
